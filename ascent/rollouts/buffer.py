"""Batches of rollouts that wait to be trained on, with a staleness above 0."""

from __future__ import annotations

from typing import Any, cast

from ascent.maths.batch import PackedBatch
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments


class RolloutBuffer:
    """First in, first out. `added` counts every batch that was ever added. A step without a signal is None."""

    def __init__(self) -> None:
        self.added = 0
        self._batches: list[PackedBatch | None] = []

    def add(self, batch: PackedBatch | None) -> None:
        self.added += 1
        self._batches.append(batch)

    def pop(self) -> PackedBatch | None:
        return self._batches.pop(0)

    def state(self) -> dict[str, Any]:
        """Everything, as tensors and plain values."""
        return {
            "added": self.added,
            "batches": [None if each is None else _to_plain(each) for each in self._batches],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.added = state["added"]
        self._batches = [None if each is None else _from_plain(each) for each in state["batches"]]


def _to_plain(batch: PackedBatch) -> dict[str, Any]:
    return {**batch, "segments": batch["segments"].lengths_B, "groups": batch["groups"].uids_B}


def _from_plain(plain: dict[str, Any]) -> PackedBatch:
    segments, groups = Segments.from_lengths(plain["segments"]), Groups.from_ids(plain["groups"])
    return cast(PackedBatch, {**plain, "segments": segments, "groups": groups})
