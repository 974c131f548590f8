"""Where a model comes from: a folder, one of our runs, or a name on the hub. Decided before anything is loaded."""

from __future__ import annotations

import re
from pathlib import Path

PICKLED = (".bin", ".pt", ".pth", ".ckpt")
STEP = re.compile(r"(?:step[-_]?)?(\d+)")


def resolve(source: str | Path) -> Path | str:
    """The folder to load, or the hub name as it was given.

    A run folder stands for its newest checkpoint's model (the highest step that has one), or for its `model/` if it has
    no checkpoints.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        found = _model_in(folder)
        refuse_pickles(found)
        return found
    if folder.exists():
        raise ValueError(f"model={str(source)!r} is a file; name the folder that holds config.json and the weights")
    if not _hub_name(str(source)):
        raise ValueError(
            f"model={str(source)!r} does not exist; give a folder with a config.json, a run folder, or a hub name "
            "like owner/name"
        )
    return str(source)


def _model_in(folder: Path) -> Path:
    steps = [(int(found[1]), path) for path in folder.glob("checkpoints/*") if (found := STEP.fullmatch(path.name))]
    newest_first = [path / "model" for _, path in sorted(steps, reverse=True)]
    for candidate in (folder, *newest_first, folder / "model"):
        if (candidate / "config.json").is_file():
            return candidate
    if (folder / "adapter_config.json").is_file():
        raise ValueError(
            f"{folder} holds a LoRA adapter without its model; load the base model, or save the merged model first"
        )
    raise ValueError(
        f"{folder} holds no model: no config.json in it, in its model/ or in any checkpoints/<step>/model/; "
        "give a Hugging Face model folder or a run folder that has saved at least once"
    )


def refuse_pickles(folder: Path) -> None:
    """Weights must be safetensors: a pickle can run any program when it is opened."""
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
    if pickled:
        raise ValueError(
            f"{folder} holds its weights as {', '.join(pickled[:3])}; only safetensors are loaded, because opening a "
            "pickle can run code; convert them with transformers: save_pretrained writes safetensors"
        )
    raise ValueError(f"{folder} has a config.json but no weights (*.safetensors); the copy or download is incomplete")


def _hub_name(source: str) -> bool:
    """owner/name or name, in the hub's alphabet; whatever starts like a path is a path."""
    part = r"[A-Za-z0-9][\w.\-]*"
    return re.fullmatch(rf"{part}(/{part})?", source) is not None
