"""Export a trained model: `ascent.export`."""

from __future__ import annotations

from pathlib import Path

from ascent.checkpoints import export as exporting
from ascent.models import adapters, heads
from ascent.models.load import Heads, load
from ascent.models.locate import resolve as model_folder
from ascent.setup.policy import device


def export(model: str | Path, target: str | Path, *, trust_remote_code: bool = False) -> Path:
    """Write a run's newest model as a plain Hugging Face folder, which loads with no Ascent installed.

    A LoRA adapter is merged into its base.

    model: a run or a model folder of this machine.
    target: the folder to create.
    trust_remote_code: run the code of the base's repository, with all your permissions, to merge an adapter.

    Returns the folder.

        ascent.export("runs/sft", "models/sft")
    """
    folder = model_folder(str(model))
    if not isinstance(folder, Path):
        raise ValueError(f"{model} is a hub name; export takes a run or a model folder of this machine")
    if adapters.base_of(folder) is None:
        return exporting.export(exporting.copy_writer(folder), Path(target))
    exporting.check_free(Path(target))
    merged = load(
        folder,
        head=_head(folder),
        dtype=_dtype(folder),
        device=device(),  # where it was trained: a GPU may quantize the base to other bits than a CPU
        trust_remote_code=trust_remote_code,
    )
    return exporting.export(merged.save, Path(target))


def _head(folder: Path) -> Heads:
    if adapters.has_score(folder):
        return "scalar"
    return "both" if (folder / heads.VALUE_HEAD_FILE).is_file() else "tokens"


def _dtype(folder: Path) -> str:
    """The dtype it was trained in; an adapter that another program wrote does not say so."""
    return str(adapters.training_of(folder)["dtype"] or "bfloat16")
