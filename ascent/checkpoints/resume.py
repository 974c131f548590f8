"""Resume: the newest valid checkpoint, and why newer ones were rejected."""

from __future__ import annotations

import json
import re
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import safe_open

from ascent.checkpoints import manifest
from ascent.checkpoints.manifest import CheckpointError
from ascent.checkpoints.save import REPLACED, STATE, TENSORS
from ascent.checkpoints.serialization import join
from ascent.checkpoints.tensor_pieces import Saved, SavedPiece, SavedTensor

_CANDIDATE = re.compile(rf"(\d+)|\.(\d+)\.{REPLACED}")


class RejectedCheckpoint(NamedTuple):
    """An invalid checkpoint and the reason."""

    folder: Path
    reason: str


class ResumePoint(NamedTuple):
    """The checkpoint to continue from; `rejected` are newer, invalid ones."""

    folder: Path
    step: int
    score: float | None
    rejected: tuple[RejectedCheckpoint, ...]

    def lines(self) -> list[str]:
        """Messages for the user."""
        notes = [
            f"checkpoint {each.folder.name} is not used: {each.reason}" for each in self.rejected
        ]
        return [*notes, f"continuing from the checkpoint of step {self.step}"]


def newest(root: Path) -> ResumePoint | None:
    """The newest valid checkpoint; None where there is none. CheckpointError where all are invalid."""
    rejected: list[RejectedCheckpoint] = []
    for folder in _candidates(root):
        try:
            content = manifest.verify(folder)
        except (CheckpointError, OSError) as error:
            rejected.append(RejectedCheckpoint(folder, str(error)))
            continue
        return ResumePoint(folder, content["step"], content["score"], tuple(rejected))
    if rejected:
        reasons = "; ".join(f"{each.folder.name}: {each.reason}" for each in rejected)
        raise CheckpointError(
            f"no checkpoint in {root} can be used ({reasons}); restore one from a copy, or start a new run"
        )
    return None


def _candidates(root: Path) -> list[Path]:
    """Newest first; for one step, the current checkpoint before the one that it replaced."""
    if not root.is_dir():
        return []
    found = []
    for path in root.iterdir():
        match = _CANDIDATE.fullmatch(path.name)
        if match:
            found.append((int(match[1] or match[2]), match[1] is not None, path))
    return [path for _, _, path in sorted(found, reverse=True)]


def read_state(folder: Path, *, lazily: bool = False) -> dict[str, Any]:
    """The state of a verified checkpoint, without its model folders.

    Whoever reads `lazily` gets large tensors as `SavedTensor`, to read a range of each; the others get them whole.
    """
    plain = json.loads((folder / STATE).read_text(encoding="utf-8"))
    tensors: dict[str, Any] = {}
    pieces: dict[str, list[SavedPiece]] = {}
    for path in sorted(folder.glob(f"{Path(TENSORS).stem}*.safetensors")):
        file = safe_open(path, framework="pt")
        for name in file.keys():  # noqa: SIM118 - not a mapping
            whole, mark, start = name.rpartition("@")
            if not mark:
                tensors[name] = file.get_tensor(name)
                continue
            stop = int(start) + prod(file.get_slice(name).get_shape())
            pieces.setdefault(whole, []).append(SavedPiece(file, name, int(start), stop))

    def of_pieces(found: list[SavedPiece], shape: tuple[int, ...]) -> Saved:
        saved = SavedTensor(shape, found)
        return saved if lazily else saved.whole()

    tensors |= {name: partial(of_pieces, found) for name, found in pieces.items()}
    state: dict[str, Any] = join(plain, tensors)
    return state
