"""Export to a Hugging Face folder that loads without Ascent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ascent.checkpoints import disk
from ascent.checkpoints.manifest import CheckpointError
from ascent.checkpoints.save import Writer


def copy_writer(folder: Path) -> Writer:
    """A writer that copies a model folder."""

    def write(target: Path) -> None:
        shutil.copytree(folder, target, dirs_exist_ok=True)

    return write


def check_free(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(
            f"{target} exists and is not an empty folder; export to another place or delete it first"
        )


def export(write_model: Writer, target: Path, *, adapter: bool = False) -> Path:
    """Write the model, or a LoRA adapter of one, to a temporary folder, check it, sync it and rename it."""
    check_free(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    writing = target.parent / f".{target.name}.writing"
    if writing.exists():
        disk.remove(writing)
    try:
        disk.announce("write", writing)
        writing.mkdir()
        with disk.writing():
            write_model(writing)
        _check(writing, "adapter_config.json" if adapter else "config.json")
        disk.sync_tree(writing)
        if target.exists():
            target.rmdir()
        disk.rename(writing, target)
    except OSError as error:
        raise CheckpointError(f"the model could not be exported to {target}: {error}") from error
    finally:
        if writing.exists():
            disk.remove(writing)
    return target


def _check(folder: Path, config_name: str) -> None:
    """CheckpointError unless transformers or peft can load the folder without Ascent and without pickle."""
    names = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    if config_name not in names:
        raise CheckpointError(
            f"the exported folder has no {config_name} (it has {names}); is this a model folder?"
        )
    if not any(name.endswith(".safetensors") for name in names):
        raise CheckpointError(f"the exported folder has no .safetensors file (it has {names})")
    pickled = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".pkl"))]
    if pickled:
        raise CheckpointError(
            f"the exported folder holds pickled files {pickled}; weights must be .safetensors"
        )
    config = json.loads((folder / config_name).read_text(encoding="utf-8"))
    if "ascent" in json.dumps(config.get("auto_map", {})):
        raise CheckpointError(
            f"{config_name}'s auto_map points into ascent; the model would not load without it"
        )
