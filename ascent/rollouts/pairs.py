"""Pairs of fresh answers as a source of training batches: the best of a prompt's answers against the worst.

Answers are sampled and scored as for any other rollouts. A prompt whose scored answers are all equal forms no pair, nor
does one with fewer than two of them. Where the row asks for the reference's answers, a prompt has two: the policy's and
the reference's, and the pair says which of them was better.

Axes: B sequences, G prompts, P pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ascent.maths.groups import Groups
from ascent.maths.metrics import Accumulator, Mean, mean_of
from ascent.protocols import Sampler
from ascent.records import Rollout
from ascent.rollouts.advantages import add_model_outputs, rollout_metrics
from ascent.rollouts.batch import Batch, select, split_microbatches
from ascent.rollouts.generate import RenderedPrompt, generate_stream
from ascent.rollouts.kl_control import to_reference
from ascent.rollouts.source import LOGPROBS, RolloutSource

OWN, OTHER = 0, 1  # sample numbers of the policy's answer and of the reference's


class PairSource(RolloutSource):
    """Implements `protocols.Source`. `other` samples from the reference, for rows that learn from its answers."""

    def __init__(self, *given: Any, other: Sampler | None = None, **named: Any) -> None:
        super().__init__(*given, **named)
        assert (other is not None) == ("reference_samples" in self.row.needs), f"row {self.row.name}: whose answers?"
        self.other = other

    def _answered(self, asked: Sequence[RenderedPrompt], occasion: str) -> list[Rollout]:
        if self.other is None:
            return super()._answered(asked, occasion)
        own = self._scored(asked, [OWN], occasion)
        other = self.score(
            generate_stream(self.other, asked, [OTHER], self.settings, occasion=occasion, text=self.text)
        )
        return [each for two in zip(own, other, strict=True) for each in two]

    def _sampled(self, step: int, attempt: int = 0) -> Batch:
        """With who is whose, and which of them form pairs."""
        whole = super()._sampled(step, attempt)
        rows_B = torch.arange(whole["segments"].count)
        chosen_B, rejected_B = best_and_worst(whole["rewards_B"], whole["groups"])
        theirs_B = rows_B % 2 == OTHER if self.other is not None else torch.zeros_like(chosen_B)
        return whole | {"chosen_B": chosen_B, "rejected_B": rejected_B, "from_reference_B": theirs_B}

    def _described(self, whole: Batch, parts: Mapping[str, Tensor]) -> dict[str, Accumulator]:
        """The policy's own answers as in any step, and how all of them compare."""
        own_B = ~whole["from_reference_B"]
        return rollout_metrics(
            _own(whole), {name: part_B[own_B] for name, part_B in parts.items()}
        ) | comparison_metrics(whole)

    def _kept(self, whole: Batch) -> list[int]:
        return _rows(whole["chosen_B"] | whole["rejected_B"])

    def _finished(self, whole: Batch) -> Batch:
        reference = self.models.reference
        if "reference" in self.row.needs:
            assert reference is not None, f"row {self.row.name} needs a reference"
            whole["ref_logprobs_T"] = add_model_outputs(whole, reference.infer, LOGPROBS, self.plan.budget)[
                "logprobs_T"
            ]
            if self.plan.max_ref_kl is not None and not bool(whole["from_reference_B"].all()):
                self._drift = self._apart(_own(whole))
        places, signs = whole.pop("places_B").tolist(), torch.where(whole["chosen_B"], 1.0, -1.0).tolist()
        lengths = whole["segments"].sum(whole["loss_mask_T"]).tolist()
        self._now.advantages = {at: [sign] * count for at, sign, count in zip(places, signs, lengths, strict=True)}
        return whole

    def _apart(self, own: Batch) -> float:
        """How far the policy is from the reference, by those of its answers that are in pairs."""
        if self.models.trust_sampler_logprobs:
            own["old_logprobs_T"] = own["sampler_logprobs_T"]
        else:
            own["old_logprobs_T"] = add_model_outputs(own, self.models.policy.infer, LOGPROBS, self.plan.budget)[
                "logprobs_T"
            ]
        return to_reference(own)["kl_k3_per_token"]

    def _units(self, batch: Batch) -> list[list[int]]:
        chosen_P, rejected_P = sides(batch)
        return torch.stack([chosen_P, rejected_P], 1).tolist()

    def _cut(self, batch: Batch, units: Sequence[Sequence[int]]) -> list[Batch]:
        pieces = split_microbatches(batch, units, self.plan.budget)
        return [piece | dict(zip(("chosen_P", "rejected_P"), sides(piece), strict=True)) for piece in pieces]


def best_and_worst(rewards_B: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """Which answers are the best and which the worst of those to their prompt that were scored; first among equals.

    Prompts whose scored answers are all equal have neither, nor have those with one or none.
    """
    scored_B = ~torch.isnan(rewards_B)
    chosen_B, rejected_B = torch.zeros_like(scored_B), torch.zeros_like(scored_B)
    for group in (~groups.spans_nothing(rewards_B, scored_B)).nonzero()[:, 0].tolist():
        rows_N = ((groups.ids_B == group) & scored_B).nonzero()[:, 0]
        chosen_B[rows_N[rewards_B[rows_N].argmax()]] = True
        rejected_B[rows_N[rewards_B[rows_N].argmin()]] = True
    return chosen_B, rejected_B


def sides(batch: Batch) -> tuple[Tensor, Tensor]:
    """The rows of the chosen and of the rejected answer, pair by pair, in a batch of whole pairs."""
    order_B = torch.argsort(batch["groups"].ids_B, stable=True)
    return order_B[batch["chosen_B"][order_B]], order_B[batch["rejected_B"][order_B]]


def comparison_metrics(whole: Batch) -> dict[str, Accumulator]:
    """How many prompts formed no pair, and how many of them for being equally good; where one answer is the
    reference's, what that earned and how often the policy's was better."""
    groups, chosen_B, theirs_B = whole["groups"], whole["chosen_B"], whole["from_reference_B"]
    scored_B = ~torch.isnan(whole["rewards_B"])
    pairs, prompts = chosen_B.sum(), torch.tensor(groups.count)
    found: dict[str, Accumulator] = {
        "reward/zero_std_frac": Mean(prompts - pairs, prompts),
        "preference/tie_frac": Mean((groups.sum(scored_B) > 1).sum() - pairs, prompts),
    }
    if bool(theirs_B.any()):
        found["reward/reference"] = mean_of(whole["rewards_B"], theirs_B & scored_B)
        found["preference/win_rate"] = mean_of(~theirs_B, chosen_B)
    return found


def _own(whole: Batch) -> Batch:
    return select(whole, _rows(~whole["from_reference_B"]))


def _rows(keep_B: Tensor) -> list[int]:
    found: list[int] = keep_B.nonzero()[:, 0].tolist()
    return found
