"""Nash-MD rollouts: every completion of the policy is compared with one of an opponent.

Both are scored by the recipe's rewards; the probability of winning is sigmoid(own reward - opponent's reward). With a
verifier that gives 1 or 0 it is .731 for the only right one of the two, .269 for the only wrong one, .5 for equals. A
completion is unscored if either of the two is. Only the policy's completions are trained on.

Axes: B sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ascent.maths.batch import PackedBatch, select
from ascent.maths.metrics import Accumulator, mean_of
from ascent.protocols import Sampler, State, Weights
from ascent.records import Rollout
from ascent.rollouts.generate import RenderedPrompt
from ascent.rollouts.metrics import reward_metrics
from ascent.rollouts.source import RolloutSource


class NashMDSource(RolloutSource):
    """Implements `protocols.Source`. `opponent` samples one completion for every one of the policy's.

    In `rollouts` each completion is followed by its opponent's. Sample numbers of opponents start at `group_size`.
    """

    def __init__(self, *args: Any, opponent: Sampler, **options: Any) -> None:
        super().__init__(*args, **options)
        self.opponent = opponent

    def sample_rollouts(self, prompts: Sequence[RenderedPrompt], noise_key: str) -> list[Rollout]:
        own, size = super().sample_rollouts(prompts, noise_key), self.config.group_size
        other = self.generate_and_score(prompts, range(size, 2 * size), noise_key, self.opponent)
        return [each for pair in zip(own, other, strict=True) for each in pair]

    def sample_batch(self, step: int, attempt: int = 0) -> PackedBatch:
        """The policy's completions, each with its probability of winning."""
        both = super().sample_batch(step, attempt)
        own = select(both, range(0, both["segments"].count, 2))
        own["opponent_rewards_B"] = both["rewards_B"][1::2]
        own["win_prob_B"] = win_probabilities(own["rewards_B"], own["opponent_rewards_B"])
        own["rewards_B"] = torch.where(torch.isnan(own["win_prob_B"]), torch.nan, own["rewards_B"])
        return own

    def metrics_of(
        self, batch: PackedBatch, components: Mapping[str, Tensor]
    ) -> dict[str, Accumulator]:
        own = {name: part_B[::2] for name, part_B in components.items()}
        return reward_metrics(batch, own) | comparison_metrics(batch)

    def refresh(self, weights: Weights) -> None:
        super().refresh(weights)
        self.opponent.set_weights(self._step, weights)

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.opponent.set_weights(self._step, {})


def win_probabilities(own_B: Tensor, other_B: Tensor) -> Tensor:
    """Bradley-Terry: the probability of beating the other, from both rewards; NaN where either is."""
    return torch.sigmoid(own_B - other_B)


def comparison_metrics(batch: PackedBatch) -> dict[str, Accumulator]:
    """The opponent's reward, the fraction of ties, and the win rate without them."""
    own_B, other_B = batch["rewards_B"], batch["opponent_rewards_B"]
    known_B = ~torch.isnan(batch["win_prob_B"])
    tied_B = own_B == other_B
    return {
        "reward/opponent": mean_of(other_B, ~torch.isnan(other_B)),
        "preference/tie_frac": mean_of(tied_B, known_B),
        "preference/win_rate": mean_of(own_B > other_B, known_B & ~tied_B),
    }
