"""Export a trained model: `ascent.export`."""

from __future__ import annotations

from pathlib import Path

from ascent.checkpoints import export as exporting
from ascent.models.locate import resolve as model_folder


def export(model: str | Path, target: str | Path) -> Path:
    """Write a run's newest model as a plain Hugging Face folder, which loads with no Ascent installed.

    model: a run or a model folder of this machine.
    target: the folder to create.

    Returns the folder.

        ascent.export("runs/sft", "models/sft")
    """
    folder = model_folder(str(model))
    if not isinstance(folder, Path):
        raise ValueError(f"{model} is a hub name; export takes a run or a model folder of this machine")
    return exporting.export(exporting.copy_writer(folder), Path(target))
