"""Rollouts that were sampled and wait to be trained on: none where a step trains on its own, a few where it may lag."""

from __future__ import annotations

from typing import Any

from ascent.maths.groups import Groups
from ascent.maths.segments import Segments

Batch = dict[str, Any]


class RolloutBuffer:
    """First in, first out; `drawn` counts all that ever came. A step without any signal waits as None."""

    def __init__(self) -> None:
        self.drawn = 0
        self._batches: list[Batch | None] = []

    def add(self, batch: Batch | None) -> None:
        self.drawn += 1
        self._batches.append(batch)

    def pop(self) -> Batch | None:
        return self._batches.pop(0)

    def state(self) -> dict[str, Any]:
        """Everything, as tensors and plain values: what waits is part of where a run stands."""
        return {"drawn": self.drawn, "batches": [None if each is None else _plain(each) for each in self._batches]}

    def load_state(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]
        self._batches = [None if each is None else _batch(each) for each in state["batches"]]


def _plain(batch: Batch) -> Batch:
    return {**batch, "segments": batch["segments"].lengths_B, "groups": batch["groups"].uids_B}


def _batch(plain: Batch) -> Batch:
    return {**plain, "segments": Segments.from_lengths(plain["segments"]), "groups": Groups.from_ids(plain["groups"])}
