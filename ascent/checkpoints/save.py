"""Save checkpoints atomically: written to a temporary folder, synced, hashed, renamed.

    checkpoints/<step>/model/...               in Hugging Face layout, written by the model (further folders likewise)
    checkpoints/<step>/optimizer.safetensors   every tensor of the state; of several ranks each writes its pieces, rank
                                               3 to optimizer-3.safetensors (ascent.checkpoints.tensor_pieces)
    checkpoints/<step>/state.json              the rest of the state
    checkpoints/<step>/manifest.json           size and sha256 of every file

Names with a leading dot are temporary: `.7.writing` is incomplete, `.7.replaced` is an older, complete checkpoint of a
step that is saved again, `.7.removing` is being deleted.
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
from ascent.parallel.ranks import SINGLE, Ranks

Writer = Callable[[Path], None]
TENSORS, PIECES, STATE = "optimizer.safetensors", "optimizer-{}.safetensors", "state.json"
WRITING, REPLACED, REMOVING = "writing", "replaced", "removing"


@dataclass(frozen=True)
class RetentionPolicy:
    """Which checkpoints are kept: the `last` ones, and the `best` ones by score.

    Scores of steps before `scored_since` are of another evaluation: any later score is better.
    """

    last: int = 2
    best: int = 0
    larger_is_better: bool = True
    scored_since: int = 0

    def __post_init__(self) -> None:
        if self.last < 1 or self.best < 0:
            raise ValueError(
                f"keep last={self.last}, best={self.best}; at least the last one must be kept, best >= 0"
            )


class SavedCheckpoint(NamedTuple):
    """The folder of the checkpoint, and the steps whose checkpoints were deleted."""

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
    ranks: Ranks = SINGLE,
) -> SavedCheckpoint:
    """Write the checkpoint of a step to disk, then delete older ones.

    `folders` maps a name ("model") to a function that writes that folder. A failed save leaves earlier checkpoints as
    they were. A non-finite score is stored as None and is never the best. All ranks call it together: each writes its
    pieces of tensors, rank 0 everything else.
    """
    if step < 0:
        raise ValueError(f"a checkpoint of step {step}; steps are counted from 0")
    writing, target = root / f".{step}.{WRITING}", root / str(step)
    plain, tensors = split(state)
    score = score if score is not None and math.isfinite(score) else None
    try:
        with ranks.together("the checkpoint's folder"):
            if ranks.is_first:
                _create(root)
                _clear_leftovers(root)
                writing.mkdir()
        hashed: dict[str, str] = {}
        with ranks.together("the checkpoint's files"):
            if ranks.is_first:
                _write_first(writing, folders, plain, tensors)
            else:
                hashed = _write_pieces(writing / PIECES.format(ranks.rank), tensors)
        known = {
            name: digest
            for own in ranks.gather(hashed, "the checkpoint's hashes")
            for name, digest in own.items()
        }
        if not ranks.is_first:
            return SavedCheckpoint(target, ())
        disk.write(
            writing / manifest.NAME, manifest.describe(writing, step=step, score=score, known=known)
        )
        disk.sync_tree(writing)
        _put_in_place(writing, target)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint of step {step} could not be written to {root}: {error}; checkpoints saved before it are "
            "untouched. Free some space or lower run.keep, then resume the run"
        ) from error
    finally:
        if ranks.is_first and writing.exists():
            disk.remove(writing)
    try:
        return SavedCheckpoint(
            target, _prune(root, step, RetentionPolicy() if keep is None else keep)
        )
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint of step {step} is safe in {target}, but an older one could not be deleted: {error}; "
            "delete it by hand, or raise run.keep"
        ) from error


def _write_first(
    writing: Path,
    folders: Mapping[str, Writer],
    plain: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> None:
    with disk.writing():
        for name, write_folder in folders.items():
            disk.announce("write", writing / name)
            (writing / name).mkdir()
            write_folder(writing / name)
        _write_tensors(writing / TENSORS, tensors)
    disk.write(writing / STATE, json.dumps(plain, allow_nan=False) + "\n")


def _write_pieces(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The pieces of a rank besides rank 0, on disk; their file with its sha256."""
    pieces = {name: tensor for name, tensor in tensors.items() if "@" in name}
    if not pieces:
        return {}
    with disk.writing():
        _write_tensors(path, pieces)
    disk.sync(path)
    return {path.name: manifest.sha256(path)}


def _create(root: Path) -> None:
    if not root.is_dir():
        root.mkdir(parents=True)
        disk.sync(root.parent)


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    disk.announce("write", path)
    # Tensors that overlap others are cloned, because safetensors refuses shared memory.
    end = 0
    distinct: dict[str, Tensor] = {}
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_ptr()):
        address = tensor.data_ptr()
        distinct[name] = tensor.clone() if address < end else tensor
        end = max(end, address + tensor.nbytes)
    save_file(distinct, path)


def _put_in_place(writing: Path, target: Path) -> None:
    """Rename to the final name. An older checkpoint of the same step is moved aside first, where resume finds it."""
    aside = target.parent / f".{target.name}.{REPLACED}"
    if target.exists():
        if aside.exists():
            disk.remove(aside)
        disk.rename(target, aside)
    disk.rename(writing, target)


def _clear_leftovers(root: Path) -> None:
    """Delete the leftovers of a killed save; `.replaced` stays until a newer checkpoint is complete."""
    for path in sorted(root.glob(f".*.{WRITING}")) + sorted(root.glob(f".*.{REMOVING}")):
        disk.remove(path)


def steps_in(root: Path) -> list[int]:
    """The steps with a checkpoint folder, sorted, not verified."""
    return (
        sorted(int(path.name) for path in root.iterdir() if path.name.isdecimal())
        if root.is_dir()
        else []
    )


def _prune(root: Path, step: int, keep: RetentionPolicy) -> tuple[int, ...]:
    """Delete what the policy does not keep, and later steps, which are left over from before a rollback."""
    saved = [each for each in steps_in(root) if each <= step]
    kept = set(saved[-keep.last :]) | set(_best(root, saved, keep))
    deleted = tuple(each for each in steps_in(root) if each not in kept)
    for path in [*(root / str(each) for each in deleted), *sorted(root.glob(f".*.{REPLACED}"))]:
        aside = root / f".{path.name.removeprefix('.')}.{REMOVING}"
        disk.rename(path, aside)  # so that no partly deleted folder has the name of a checkpoint
        disk.remove(aside)
    return deleted


def best(root: Path, keep: RetentionPolicy) -> list[int]:
    """The steps with the best checkpoints, best first."""
    return _best(root, steps_in(root), keep)


def _best(root: Path, steps: list[int], keep: RetentionPolicy) -> list[int]:
    scores: dict[int, tuple[bool, float]] = {}
    for each in steps:
        try:
            score = manifest.read(root / str(each))["score"]
        except CheckpointError:
            continue  # an invalid checkpoint is never the best
        if score is not None:
            scores[each] = each >= keep.scored_since, score if keep.larger_is_better else -score
    return sorted(scores, key=lambda each: (scores[each], each), reverse=True)[: keep.best]
