"""A reward from a `protocols.Scorer`: a reward model or a server."""

from __future__ import annotations

from collections.abc import Sequence

from ascent.protocols import Score, Scorer
from ascent.records import Rollout
from ascent.rewards.outcome import Unscored
from ascent.rewards.registry import Batch


class ModelReward(Batch):
    """The scorer is created in `setup`, so this module needs no torch."""

    def __init__(self, *, scorer: Scorer) -> None:
        self._scorer = scorer

    def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score | Unscored]:
        return [
            Unscored("model", "the model gave no score") if value is None else value
            for value in self._scorer.score(rollouts)
        ]
