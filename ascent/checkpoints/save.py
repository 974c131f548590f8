"""Saving: everything under a temporary name, synced and hashed, then one rename. A checkpoint is whole or not there.

    checkpoints/<step>/model/...               written by the model itself, in Hugging Face layout (other folders alike)
    checkpoints/<step>/optimizer.safetensors   every tensor of the state
    checkpoints/<step>/state.json              the rest of the state
    checkpoints/<step>/manifest.json           size and sha256 of every file

Names that begin with a dot are work in progress: `.7.writing` was never finished, `.7.replaced` is an older whole
checkpoint of a step that was just saved again, `.7.removing` is being deleted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save_file
from torch import Tensor

from ascent.checkpoints import disk, manifest
from ascent.checkpoints.manifest import CheckpointError
from ascent.checkpoints.serialization import split

Writer = Callable[[Path], None]
TENSORS, STATE = "optimizer.safetensors", "state.json"
WRITING, REPLACED, REMOVING = "writing", "replaced", "removing"


@dataclass(frozen=True)
class RetentionPolicy:
    """Which checkpoints survive: the `last` so many, and the `best` so many by score (larger is better, or smaller)."""

    last: int = 2
    best: int = 0
    larger_is_better: bool = True

    def __post_init__(self) -> None:
        if self.last < 1 or self.best < 0:
            raise ValueError(f"keep last={self.last}, best={self.best}; at least the last one must be kept, best >= 0")


class SavedCheckpoint(NamedTuple):
    """Where the checkpoint lies, and the steps whose checkpoints were deleted for it."""

    folder: Path
    deleted: tuple[int, ...]


def save(
    root: Path,
    step: int,
    state: Mapping[str, Any],
    folders: Mapping[str, Writer],
    *,
    keep: RetentionPolicy | None = None,
    score: float | None = None,
) -> SavedCheckpoint:
    """Write the checkpoint of a step and return once it is safe on disk; only then are older ones deleted.

    `folders` maps a name ("model") to a function that writes such a folder. On failure the folder is as it was before.
    A score that is not a number is stored as none: it cannot be the best.
    """
    if step < 0:
        raise ValueError(f"a checkpoint of step {step}; steps are counted from 0")
    writing, target = root / f".{step}.{WRITING}", root / str(step)
    plain, tensors = split(state)
    score = score if score is not None and math.isfinite(score) else None
    try:
        _make(root)
        _clear_leftovers(root)
        writing.mkdir()
        with disk.writing():
            for name, write_folder in folders.items():
                disk.announce("write", writing / name)
                (writing / name).mkdir()
                write_folder(writing / name)
            _write_tensors(writing / TENSORS, tensors)
        disk.write(writing / STATE, json.dumps(plain, allow_nan=False) + "\n")
        disk.write(writing / manifest.NAME, manifest.describe(writing, step=step, score=score))
        disk.sync_tree(writing)
        _put_in_place(writing, target)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint of step {step} could not be written to {root}: {error}; checkpoints saved before it are "
            "untouched. Free some space or lower run.keep, then resume the run"
        ) from error
    finally:
        if writing.exists():
            disk.remove(writing)
    try:
        return SavedCheckpoint(target, _prune(root, step, RetentionPolicy() if keep is None else keep))
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint of step {step} is safe in {target}, but an older one could not be deleted: {error}; "
            "delete it by hand, or raise run.keep"
        ) from error


def _make(root: Path) -> None:
    if not root.is_dir():
        root.mkdir(parents=True)
        disk.sync(root.parent)


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    disk.announce("write", path)
    # A tensor named twice in the state is stored twice: safetensors refuses memory shared between names.
    seen: set[int] = set()
    distinct: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        address = tensor.untyped_storage().data_ptr()
        distinct[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    save_file(distinct, path)


def _put_in_place(writing: Path, target: Path) -> None:
    """One rename; a step that is saved again moves its older checkpoint aside first, where resuming still finds it."""
    aside = target.parent / f".{target.name}.{REPLACED}"
    if target.exists():
        if aside.exists():
            disk.remove(aside)
        disk.rename(target, aside)
    disk.rename(writing, target)


def _clear_leftovers(root: Path) -> None:
    """Delete what a killed save left behind; `.replaced` stays until a newer checkpoint is whole."""
    for path in sorted(root.glob(f".*.{WRITING}")) + sorted(root.glob(f".*.{REMOVING}")):
        disk.remove(path)


def steps_in(root: Path) -> list[int]:
    """The steps that have a checkpoint folder, in order; nothing is verified."""
    return sorted(int(path.name) for path in root.iterdir() if path.name.isdecimal()) if root.is_dir() else []


def _prune(root: Path, step: int, keep: RetentionPolicy) -> tuple[int, ...]:
    """Delete what the policy does not keep. Later steps belong to a past this run was taken back from: they go too."""
    past = [each for each in steps_in(root) if each <= step]
    kept = set(past[-keep.last :]) | set(_best(root, past, keep))
    deleted = tuple(each for each in steps_in(root) if each not in kept)
    for path in [*(root / str(each) for each in deleted), *sorted(root.glob(f".*.{REPLACED}"))]:
        aside = root / f".{path.name.removeprefix('.')}.{REMOVING}"
        disk.rename(path, aside)  # at no instant does a half-deleted folder carry a checkpoint's name
        disk.remove(aside)
    return deleted


def best(root: Path, keep: RetentionPolicy) -> list[int]:
    """The steps whose checkpoints are kept for their score, best first."""
    return _best(root, steps_in(root), keep)


def _best(root: Path, steps: list[int], keep: RetentionPolicy) -> list[int]:
    scores: dict[int, float] = {}
    for each in steps:
        try:
            score = manifest.read(root / str(each))["score"]
        except CheckpointError:
            continue  # it cannot be used, so it cannot be the best
        if score is not None:
            scores[each] = score if keep.larger_is_better else -score
    return sorted(scores, key=lambda each: (scores[each], each), reverse=True)[: keep.best]
