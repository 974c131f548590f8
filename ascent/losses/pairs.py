"""Pairs of responses, as preference losses read them. Axes: B sequences, P pairs.

`logprobs_B` and `ref_logprobs_B` are sums over a sequence's trained tokens, `lengths_B` counts these tokens, `chosen_P`
and `rejected_P` are the two sequences of each pair.
"""

from __future__ import annotations

from torch import Tensor

from ascent.losses.loss import ItemLosses
from ascent.maths.metrics import Accumulator, mean_of


class Pairs:
    """Pairs for losses without a reference model."""

    def __init__(
        self, logprobs_B: Tensor, lengths_B: Tensor, chosen_P: Tensor, rejected_P: Tensor
    ) -> None:
        self.logprobs_B, self.lengths_B, self.chosen_P, self.rejected_P = (
            logprobs_B,
            lengths_B,
            chosen_P,
            rejected_P,
        )

    @property
    def mean_B(self) -> Tensor:
        """The mean log-prob of each response's tokens."""
        return self.per_token(self.logprobs_B)

    @property
    def counted_P(self) -> Tensor:
        """Pairs without an empty response; the others say nothing."""
        return (self.lengths_B[self.chosen_P] > 0) & (self.lengths_B[self.rejected_P] > 0)

    def per_token(self, x_B: Tensor) -> Tensor:
        return x_B / self.lengths_B.clamp(min=1)

    def sides(self, x_B: Tensor) -> tuple[Tensor, Tensor]:
        """The chosen and the rejected response's value."""
        return x_B[self.chosen_P], x_B[self.rejected_P]

    def margin(self, x_B: Tensor) -> Tensor:
        return x_B[self.chosen_P] - x_B[self.rejected_P]

    def losses(self, losses_P: Tensor, reward_B: Tensor) -> ItemLosses:
        """The losses with the metrics of the implicit rewards."""
        counted_P = self.counted_P
        chosen_P, rejected_P = self.sides(reward_B)
        logprobs_chosen_P, logprobs_rejected_P = self.sides(self.logprobs_B)
        metrics: dict[str, Accumulator] = {
            "preference/accuracy": mean_of(chosen_P > rejected_P, counted_P),
            "preference/margin": mean_of(chosen_P - rejected_P, counted_P),
            "preference/reward_chosen": mean_of(chosen_P, counted_P),
            "preference/reward_rejected": mean_of(rejected_P, counted_P),
            "preference/logprobs_chosen": mean_of(logprobs_chosen_P, counted_P),
            "preference/logprobs_rejected": mean_of(logprobs_rejected_P, counted_P),
        }
        return ItemLosses(losses_P, counted_P, metrics)


class ReferencePairs(Pairs):
    """Pairs with the reference model's log-probs, which carry no gradient."""

    def __init__(
        self,
        logprobs_B: Tensor,
        ref_logprobs_B: Tensor,
        lengths_B: Tensor,
        chosen_P: Tensor,
        rejected_P: Tensor,
    ) -> None:
        super().__init__(logprobs_B, lengths_B, chosen_P, rejected_P)
        self.ref_logprobs_B = ref_logprobs_B.detach()

    @property
    def log_ratio_B(self) -> Tensor:
        """u = log pi - log ref."""
        return self.logprobs_B - self.ref_logprobs_B
