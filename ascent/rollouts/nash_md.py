"""Rollouts that play against an opponent: every answer of the policy is compared with one of somebody else's.

Both answers are scored alike, by the recipe's rewards; the chance of winning is sigmoid(own score - opponent's score).
A verifier that pays 1 or 0 thus gives .731 to the only right answer of the two, .269 to the only wrong one, .5 to
equals. An answer is unscored where either of the two could not be scored. Only the policy's answers are trained on.

Axes: B sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ascent.maths.metrics import Accumulator, mean_of
from ascent.protocols import Sampler, State, Weights
from ascent.records import Rollout
from ascent.rollouts.advantages import rollout_metrics
from ascent.rollouts.batch import Batch, select
from ascent.rollouts.generate import RenderedPrompt, generate_stream
from ascent.rollouts.source import RolloutSource


class NashMDSource(RolloutSource):
    """Implements `protocols.Source`. `other` samples the opponents: one for every answer, with noise of its own.

    Among a step's `rollouts` each answer is followed by its opponent; with n samples of a prompt the opponents are
    numbered from n on.
    """

    def __init__(self, *given: Any, other: Sampler, **named: Any) -> None:
        super().__init__(*given, **named)
        self.other = other

    def _answered(self, asked: Sequence[RenderedPrompt], occasion: str) -> list[Rollout]:
        own, count = super()._answered(asked, occasion), self.plan.samples
        numbers = range(count, 2 * count)
        other = self.score(
            generate_stream(self.other, asked, numbers, self.settings, occasion=occasion, text=self.text)
        )
        return [each for two in zip(own, other, strict=True) for each in two]

    def _sampled(self, step: int, attempt: int = 0) -> Batch:
        """The policy's own answers, with the chance of each to beat its opponent."""
        both = super()._sampled(step, attempt)
        own = select(both, range(0, both["segments"].count, 2))
        win_prob_B = win_probabilities(own["rewards_B"], both["rewards_B"][1::2])
        rewards_B = torch.where(torch.isnan(win_prob_B), torch.nan, own["rewards_B"])
        return own | {"rewards_B": rewards_B, "opponent_rewards_B": both["rewards_B"][1::2], "win_prob_B": win_prob_B}

    def _described(self, whole: Batch, parts: Mapping[str, Tensor]) -> dict[str, Accumulator]:
        return rollout_metrics(whole, {name: part_B[::2] for name, part_B in parts.items()}) | comparison_metrics(whole)

    def refresh(self, weights: Weights) -> None:
        super().refresh(weights)
        self.other.set_weights(self._step, weights)

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.other.set_weights(self._step, {})


def win_probabilities(own_B: Tensor, other_B: Tensor) -> Tensor:
    """Of beating the other by these scores, as Bradley and Terry have it; NaN where either is. Scores 1 and 0: .731."""
    return torch.sigmoid(own_B - other_B)


def comparison_metrics(whole: Batch) -> dict[str, Accumulator]:
    """What the opponents earned, how often both earned the same, and who won where they did not."""
    own_B, other_B = whole["rewards_B"], whole["opponent_rewards_B"]
    known_B = ~torch.isnan(whole["win_prob_B"])
    tied_B = own_B == other_B
    return {
        "reward/opponent": mean_of(other_B, ~torch.isnan(other_B)),
        "preference/tie_frac": mean_of(tied_B, known_B),
        "preference/win_rate": mean_of(own_B > other_B, known_B & ~tied_B),
    }
