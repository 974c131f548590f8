"""Pairs of fresh completions as a source of training batches: the best of a prompt's completions against the worst.

A prompt forms no pair if it has fewer than two scored completions, or if all of them have the same reward. Rows that
learn from the reference's completions get two per prompt: the policy's and the reference's.

Axes: B sequences, G prompts, P pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ascent.maths.batch import PackedBatch, select
from ascent.maths.groups import Groups
from ascent.maths.metrics import Accumulator, Mean, mean_of
from ascent.protocols import Sampler
from ascent.records import Rollout
from ascent.rollouts.experience import logprobs_under
from ascent.rollouts.generate import RenderedPrompt
from ascent.rollouts.kl_control import kl_to_reference
from ascent.rollouts.metrics import reward_metrics
from ascent.rollouts.microbatches import Unit, split_microbatches
from ascent.rollouts.source import RolloutSource

POLICY, REFERENCE = 0, 1  # sample numbers where both models complete a prompt


class PairSource(RolloutSource):
    """Implements `protocols.Source`. Rows that learn from the reference's completions need `reference_sampler`."""

    def __init__(
        self, *args: Any, reference_sampler: Sampler | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        wanted = "reference_samples" in self.row.needs
        assert (reference_sampler is not None) == wanted, (
            f"row {self.row.name}: reference_sampler does not fit"
        )
        self.reference_sampler = reference_sampler

    def sample_rollouts(self, prompts: Sequence[RenderedPrompt], noise_key: str) -> list[Rollout]:
        if self.reference_sampler is None:
            return super().sample_rollouts(prompts, noise_key)
        own = self.generate_and_score(prompts, [POLICY], noise_key)
        other = self.generate_and_score(prompts, [REFERENCE], noise_key, self.reference_sampler)
        return [each for pair in zip(own, other, strict=True) for each in pair]

    def sample_batch(self, step: int, attempt: int = 0) -> PackedBatch:
        """With the pairs, and with who sampled what."""
        batch = super().sample_batch(step, attempt)
        batch["chosen_B"], batch["rejected_B"] = best_and_worst(batch["rewards_B"], batch["groups"])
        batch["from_reference_B"] = torch.zeros_like(batch["chosen_B"])
        if self.reference_sampler is not None:
            batch["from_reference_B"] = torch.arange(batch["segments"].count) % 2 == REFERENCE
        return batch

    def metrics_of(
        self, batch: PackedBatch, components: Mapping[str, Tensor]
    ) -> dict[str, Accumulator]:
        """Rewards of the policy's completions, and how all of them compare."""
        own_B = ~batch["from_reference_B"]
        own = {name: part_B[own_B] for name, part_B in components.items()}
        return reward_metrics(_of_policy(batch), own) | comparison_metrics(batch)

    def rows_with_signal(self, batch: PackedBatch) -> list[int]:
        return _rows(batch["chosen_B"] | batch["rejected_B"])

    def prepare(self, batch: PackedBatch) -> PackedBatch:
        """Add reference log-probs. A chosen completion counts as advantage 1, a rejected one as -1."""
        if "reference" in self.row.needs:
            batch["ref_logprobs_T"] = logprobs_under(
                self.models.reference, batch, self.config.tokens_per_microbatch, self.models.ranks
            )
            if self.config.max_ref_kl is not None and not bool(batch["from_reference_B"].all()):
                self._ref_kl = self._measure_ref_kl(_of_policy(batch))
        indices, signs = (
            batch.pop("rollout_index_B").tolist(),
            torch.where(batch["chosen_B"], 1.0, -1.0).tolist(),
        )
        lengths = batch["segments"].sum(batch["loss_mask_T"]).tolist()
        self.current.advantages = {
            index: [sign] * length
            for index, sign, length in zip(indices, signs, lengths, strict=True)
        }
        return batch

    def _measure_ref_kl(self, own: PackedBatch) -> float:
        """KL from the policy to the reference, on those of its completions that are in pairs."""
        if self.models.trust_sampler_logprobs:
            own["old_logprobs_T"] = own["sampler_logprobs_T"]
        else:
            own["old_logprobs_T"] = self._policy_logprobs(own)
        return kl_to_reference(own)["kl_k3_per_token"]

    def units(self, batch: PackedBatch) -> list[Unit]:
        return torch.stack(pair_indices(batch), 1).tolist()

    def microbatches(self, batch: PackedBatch, units: Sequence[Unit]) -> list[PackedBatch]:
        pieces = split_microbatches(
            batch, units, self.config.tokens_per_microbatch, ranks=self.models.ranks.count
        )
        for piece in pieces:
            piece["chosen_P"], piece["rejected_P"] = pair_indices(piece)
        return pieces


def best_and_worst(rewards_B: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """Masks of the best and the worst scored completion of each prompt; the first among equals.

    Both are false where all scored completions of a prompt are equal, or where there are fewer than two.
    """
    scored_B = ~torch.isnan(rewards_B)
    chosen_B, rejected_B = torch.zeros_like(scored_B), torch.zeros_like(scored_B)
    for group in (~groups.all_equal(rewards_B, scored_B)).nonzero()[:, 0].tolist():
        rows_N = ((groups.ids_B == group) & scored_B).nonzero()[:, 0]
        chosen_B[rows_N[rewards_B[rows_N].argmax()]] = True
        rejected_B[rows_N[rewards_B[rows_N].argmin()]] = True
    return chosen_B, rejected_B


def pair_indices(batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """The rows of the chosen and of the rejected completion of each pair, in a batch of whole pairs."""
    order_B = torch.argsort(batch["groups"].ids_B, stable=True)
    return order_B[batch["chosen_B"][order_B]], order_B[batch["rejected_B"][order_B]]


def comparison_metrics(batch: PackedBatch) -> dict[str, Accumulator]:
    """Prompts without a pair, and ties among them; with the reference's completions, its reward and the win rate."""
    groups, chosen_B, from_reference_B = (
        batch["groups"],
        batch["chosen_B"],
        batch["from_reference_B"],
    )
    scored_B = ~torch.isnan(batch["rewards_B"])
    pairs, prompts = chosen_B.sum(), torch.tensor(groups.count)
    found: dict[str, Accumulator] = {
        "reward/zero_std_frac": Mean(prompts - pairs, prompts),
        "preference/tie_frac": Mean((groups.sum(scored_B) > 1).sum() - pairs, prompts),
    }
    if bool(from_reference_B.any()):
        found["reward/reference"] = mean_of(batch["rewards_B"], from_reference_B & scored_B)
        found["preference/win_rate"] = mean_of(~from_reference_B, chosen_B)
    return found


def _of_policy(batch: PackedBatch) -> PackedBatch:
    return select(batch, _rows(~batch["from_reference_B"]))


def _rows(keep_B: Tensor) -> list[int]:
    rows: list[int] = keep_B.nonzero()[:, 0].tolist()
    return rows
