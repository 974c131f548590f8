"""The manifest of a checkpoint: its files with size and sha256, and the sha256 of the manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "manifest.json"
FORMAT = 2


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or used."""


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe(
    folder: Path, *, step: int, score: float | None, known: Mapping[str, str] | None = None
) -> str:
    """The text of a manifest for all files in the folder. `known` are the hashes of files that others wrote."""
    known = known or {}
    files = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": known.get(path.name) or sha256(path),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / NAME
    }
    content = {"format": FORMAT, "step": step, "score": score, "files": files}
    return json.dumps({**content, "sha256": _digest(content)}, indent=1, allow_nan=False) + "\n"


def read(folder: Path) -> dict[str, Any]:
    """The manifest, verified; its files are not read."""
    path = folder / NAME
    if not path.is_file():
        raise CheckpointError(f"it has no {NAME}: it was never finished, or the file was lost")
    try:
        found = json.loads(path.read_bytes())
        digest = found.pop("sha256")
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{NAME} cannot be read ({error}): it is truncated or corrupted"
        ) from error
    if digest != _digest(found):
        raise CheckpointError(f"{NAME} does not match its own sha256: it is corrupted")
    if found["format"] != FORMAT:
        raise CheckpointError(
            f"it has format {found['format']}, this version reads {FORMAT}; use the version that wrote it"
        )
    content: dict[str, Any] = found
    return content


def verify(folder: Path, *, under: str = "") -> dict[str, Any]:
    """Verify every file, or those whose names begin so; returns the manifest, or raises CheckpointError."""
    content = read(folder)
    for name, expected in content["files"].items():
        if not name.startswith(under):
            continue
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{name} is missing")
        size = path.stat().st_size
        if size != expected["bytes"]:
            raise CheckpointError(
                f"{name} has {size} bytes, the manifest says {expected['bytes']}: it is truncated"
            )
        if sha256(path) != expected["sha256"]:
            raise CheckpointError(f"{name} does not match its sha256: it is corrupted")
    return content


def check_weights(model: Path, hashes: Mapping[str, str]) -> None:
    """Raises CheckpointError if a checkpoint's model has other weights than were saved; `hashes` by name of file."""
    checkpoint = model.parent
    if not (checkpoint / NAME).is_file():
        return
    expected = read(checkpoint)["files"]
    for name, found in hashes.items():
        saved = expected.get(f"{model.name}/{name}")
        if name.endswith(".safetensors") and saved is not None and saved["sha256"] != found:
            raise CheckpointError(
                f"{model / name} does not match its sha256 in {checkpoint / NAME}: it is corrupted; name another "
                "checkpoint of the run"
            )


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()
