"""Locate a model: a folder, one of our runs, or a hub name."""

from __future__ import annotations

import re
from pathlib import Path

PICKLED = (".bin", ".pt", ".pth", ".ckpt")
STEP = re.compile(r"(?:step[-_]?)?(\d+)")
ADAPTER_CONFIG = "adapter_config.json"  # the mark of a LoRA adapter's folder
SECONDS = 10.0  # timeout of the hub


def resolve(source: str | Path) -> Path | str:
    """The folder to load, or the hub name.

    For a run folder: the model of its newest checkpoint (the highest step that has one), or its `model/`.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        found = _model_in(folder)
        refuse_pickles(found)
        return found
    if folder.exists():
        raise ValueError(
            f"model={str(source)!r} is a file; name the folder that holds config.json and the weights"
        )
    if not _hub_name(str(source)):
        raise ValueError(
            f"model={str(source)!r} does not exist; give a folder with a config.json, a run folder, or a hub name "
            "like owner/name"
        )
    if folder.parent != Path() and folder.parent.is_dir():
        raise ValueError(
            f"model={str(source)!r} does not exist; it is taken for a path and not for a hub name, because there is a "
            f"folder {str(folder.parent)!r} here; correct the path, or load the hub's model from another folder"
        )
    return str(source)


def check_hub(found: Path | str) -> Path | str:
    """A folder or a hub name, unchanged; if the hub cannot be reached, the cached snapshot. (A download would retry for
    half a minute.)"""
    if isinstance(found, Path):
        return found
    import httpx
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        HfApi().model_info(found, timeout=SECONDS)
    except HfHubHTTPError:
        return found  # the hub answered; loading the model reports its error
    except (httpx.TransportError, OfflineModeIsEnabled) as error:
        try:
            return Path(snapshot_download(found, local_files_only=True))
        except LocalEntryNotFoundError:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ValueError(
                f"model={found!r} is no folder here and was never downloaded, and the hub cannot be reached "
                f"({reason}); give a folder, or download the model where there is a network"
            ) from error
    return found


def local_folder(origin: str) -> Path | None:
    """The folder, or the cached snapshot of a hub name; None where there is neither. Nothing is downloaded."""
    if origin and Path(origin).is_dir():
        return Path(origin)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(origin, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def _model_in(folder: Path) -> Path:
    steps = [
        (int(found[1]), path)
        for path in folder.glob("checkpoints/*")
        if (found := STEP.fullmatch(path.name))
    ]
    newest_first = [path / "model" for _, path in sorted(steps, reverse=True)]
    for candidate in (folder, *newest_first, folder / "model"):
        if (candidate / "config.json").is_file() or (candidate / ADAPTER_CONFIG).is_file():
            return candidate
    raise ValueError(
        f"{folder} holds no model: no config.json in it, in its model/ or in any checkpoints/<step>/model/; "
        "give a Hugging Face model folder or a run folder that has saved at least once"
    )


def refuse_pickles(folder: Path) -> None:
    """Weights must be safetensors: loading a pickle can run code."""
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
    if pickled:
        raise ValueError(
            f"{folder} holds its weights as {', '.join(pickled[:3])}; only safetensors are loaded, because opening a "
            "pickle can run code; convert them with transformers: save_pretrained writes safetensors"
        )
    raise ValueError(
        f"{folder} has a config.json but no weights (*.safetensors); the copy or download is incomplete"
    )


def _hub_name(source: str) -> bool:
    """Is it owner/name or name, in the hub's alphabet?"""
    part = r"[A-Za-z0-9][\w.\-]*"
    return re.fullmatch(rf"{part}(/{part})?", source) is not None
