"""Alignment by optimal transport: the distribution of good log-ratios must lie above the distribution of bad ones.

Axes: B sequences, P pairs. Both losses compare order statistics of the whole optimizer step: the k-th smallest on one
side with the k-th smallest on the other (AOT, arXiv 2406.05882). The step statistics below give every sequence the
number that it is compared with, so micro-batches change nothing.

Worked example, two pairs, beta .1: log pi differences (4, -1), log ref differences (1, 2). Sorted they are (-1, 4) and
(1, 2), so z = (-2, 2) and the loss is .698139.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.cells import from_inputs, step_statistic
from ascent.losses.loss import ItemLosses
from ascent.losses.pairs import ReferencePairs
from ascent.losses.preferences import smoothed
from ascent.parameter_ranges import BelowHalf, Positive, checked


@from_inputs(ReferencePairs)
def matched_margins(pairs: ReferencePairs) -> Tensor:
    """For each pair, at its chosen sequence: the reference's margin of the same rank as the policy's; 0 elsewhere."""
    pairs = _counted(pairs)
    matched_B = torch.zeros_like(pairs.logprobs_B)
    order_P = pairs.margin(pairs.logprobs_B).argsort(stable=True)
    matched_B[pairs.chosen_P[order_P]] = (
        pairs.margin(pairs.ref_logprobs_B).sort().values.to(matched_B)
    )
    return matched_B.detach()


@step_statistic(matched_margin_B=matched_margins)
@checked
@from_inputs(ReferencePairs)
def aot(
    pairs: ReferencePairs,
    matched_margin_B: Tensor,
    *,
    beta: Positive = 0.1,
    label_smoothing: BelowHalf = 0.0,
) -> ItemLosses:
    """-log sigmoid(beta z), z = the policy's margin minus the reference's margin of the same rank in the step.

    With one pair it is DPO. Paired AOT, arXiv 2406.05882.
    """
    margin_P = pairs.margin(pairs.logprobs_B) - matched_margin_B[pairs.chosen_P].detach()
    return pairs.losses(smoothed(beta * margin_P, label_smoothing), beta * pairs.log_ratio_B)


@from_inputs(ReferencePairs)
def matched_scores(pairs: ReferencePairs) -> Tensor:
    """For each sequence of a pair: the log-ratio of the same rank on the other side; 0 for sequences in no pair."""
    pairs = _counted(pairs)
    matched_B = torch.zeros_like(pairs.logprobs_B)
    chosen, rejected = (
        each_P.sort(stable=True) for each_P in pairs.sides(pairs.log_ratio_B.detach())
    )
    matched_B[pairs.chosen_P[chosen.indices]] = rejected.values
    matched_B[pairs.rejected_P[rejected.indices]] = chosen.values
    return matched_B.detach()


@step_statistic(matched_score_B=matched_scores)
@checked
@from_inputs(ReferencePairs)
def aot_unpaired(
    pairs: ReferencePairs,
    matched_score_B: Tensor,
    *,
    beta: Positive = 0.1,
    label_smoothing: BelowHalf = 0.0,
) -> ItemLosses:
    """-log sigmoid(beta (u_w - u_l)) between chosen and rejected responses of the same rank, of any prompt.

    Each side is trained against the frozen value of the other; the two gradients together are that of the joint loss.
    """
    chosen_P, rejected_P = pairs.sides(pairs.log_ratio_B)
    below_P, above_P = pairs.sides(matched_score_B.detach())
    losses_P = smoothed(beta * (chosen_P - below_P), label_smoothing)
    mirrored_P = smoothed(beta * (above_P - rejected_P), label_smoothing)
    losses_P = (
        losses_P + mirrored_P - mirrored_P.detach()
    )  # the value is counted once, on the chosen side
    return pairs.losses(losses_P, beta * pairs.log_ratio_B)


def _counted(pairs: ReferencePairs) -> ReferencePairs:
    """Without pairs that are not counted: they take no rank."""
    counted_P = pairs.counted_P
    return ReferencePairs(
        pairs.logprobs_B,
        pairs.ref_logprobs_B,
        pairs.lengths_B,
        pairs.chosen_P[counted_P],
        pairs.rejected_P[counted_P],
    )
