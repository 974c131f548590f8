"""Export a trained model: `ascent.export`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ascent.api.model_card import run_of, write_card
from ascent.api.push import check_push, push_folder
from ascent.checkpoints import export as exporting
from ascent.checkpoints import manifest
from ascent.checkpoints.save import Writer
from ascent.models import adapters, heads
from ascent.models.load import Heads, load
from ascent.models.locate import resolve as model_folder
from ascent.setup.policy import device


def export(
    model: str | Path,
    target: str | Path,
    *,
    trust_remote_code: bool = False,
    push: str | None = None,
    private: bool = False,
    say: Callable[[str], None] = print,
) -> Path:
    """Write a run's newest model as a plain Hugging Face folder, which loads with no Ascent installed.

    A LoRA adapter is merged into its base. A model card (README.md) is made from the run: data, recipe, algorithm,
    held-out metrics, how to load it.

    model: a run or a model folder of this machine.
    target: the folder to create.
    trust_remote_code: run the code of the base's repository, with all your permissions, to merge an adapter.
    push: also upload the folder to this repository of the hub, OWNER/NAME, which is created if it does not exist.
    private: create that repository as a private one.
    say: receives the address of the upload.

    Returns the folder.

        ascent.export("runs/sft", "models/sft")
        ascent.export("runs/sft", "models/sft", push="me/sft", private=True)
    """
    if private and push is None:
        raise ValueError(
            "private applies to the repository that push names; give push OWNER/NAME, or leave it out"
        )
    if push is not None:
        check_push(push)
    folder = model_folder(str(model))
    if not isinstance(folder, Path):
        raise ValueError(
            f"{model} is a hub name; export takes a run or a model folder of this machine"
        )
    _check_whole(folder)
    exporting.check_free(Path(target))
    write_model, run = _writer(folder, trust_remote_code), run_of(folder)

    def write(writing: Path) -> None:
        write_model(writing)
        if run is not None or push is not None:
            write_card(
                writing,
                run,
                push or Path(target).name,
                int(folder.parent.name) if run is not None else 0,
            )

    written = exporting.export(write, Path(target))
    if push is not None:
        say(f"pushed to {push_folder(written, push, private=private)}")
    return written


def _check_whole(folder: Path) -> None:
    """ValueError if the model of a checkpoint is not what was saved."""
    checkpoint = folder.parent
    if (checkpoint / manifest.NAME).is_file():
        try:
            manifest.verify(checkpoint, under=f"{folder.name}/")
        except manifest.CheckpointError as error:
            raise ValueError(
                f"{checkpoint} cannot be exported: {error}; name another checkpoint of the run"
            ) from error


def _writer(folder: Path, trust_remote_code: bool) -> Writer:
    """Copies a model, or merges an adapter."""
    if adapters.base_of(folder) is None:
        return exporting.copy_writer(folder)
    return load(
        folder,
        head=_head(folder),
        dtype=_dtype(folder),
        device=device(),  # where it was trained: a GPU may quantize the base to other bits than a CPU
        trust_remote_code=trust_remote_code,
    ).save


def _head(folder: Path) -> Heads:
    if adapters.has_score(folder):
        return "scalar"
    return "both" if (folder / heads.VALUE_HEAD_FILE).is_file() else "tokens"


def _dtype(folder: Path) -> str:
    """The dtype it was trained in; an adapter that another program wrote does not say so."""
    return str(adapters.training_of(folder)["dtype"] or "bfloat16")
