"""A model as a reward: whatever scores rollouts (a reward model, a server) behind the one signature."""

from __future__ import annotations

from collections.abc import Sequence

from ascent.protocols import Score, Scorer
from ascent.records import Rollout
from ascent.rewards.outcome import Unscored
from ascent.rewards.registry import Batch


class Scored(Batch):
    """The Scorer is made and handed in by `build`, so nothing here needs torch."""

    def __init__(self, *, scorer: Scorer) -> None:
        self._scorer = scorer

    def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score | Unscored]:
        return [
            Unscored("model", "the model gave no score") if value is None else value
            for value in self._scorer.score(rollouts)
        ]
