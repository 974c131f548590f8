"""Alignment by optimal transport: the distribution of good log-ratios must lie above the distribution of bad ones.

Axes: B sequences, P pairs. Both losses compare order statistics of the whole optimizer step: the k-th smallest on one
side with the k-th smallest on the other (AOT, arXiv 2406.05882). Who meets whom is settled before any micro-batch is
trained: the statistics below give every sequence the number it is compared with, so that cutting changes nothing.

Worked example, two pairs, beta .1: log pi differences (4, -1), log ref differences (1, 2). Sorted they are (-1, 4) and
(1, 2), so z = (-2, 2) and the loss is .698139.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.cells import step_statistic
from ascent.losses.loss import ItemLosses
from ascent.losses.preferences import paired, smoothed
from ascent.parameter_ranges import BelowHalf, Positive, checked


def matched_margins(
    logprobs_B: Tensor, ref_logprobs_B: Tensor, lengths_B: Tensor, chosen_P: Tensor, rejected_P: Tensor
) -> Tensor:
    """For each pair, at its chosen sequence: the reference's margin of the same rank as the policy's; 0 elsewhere."""
    whole_P = _whole(lengths_B, chosen_P, rejected_P)
    chosen_P, rejected_P = chosen_P[whole_P], rejected_P[whole_P]
    matched_B = torch.zeros_like(logprobs_B)
    ours_P = logprobs_B[chosen_P] - logprobs_B[rejected_P]
    theirs_P = ref_logprobs_B[chosen_P] - ref_logprobs_B[rejected_P]
    matched_B[chosen_P[ours_P.argsort(stable=True)]] = theirs_P.sort().values.to(matched_B)
    return matched_B.detach()


@step_statistic(matched_margin_B=matched_margins)
@checked
def aot(
    logprobs_B: Tensor,
    ref_logprobs_B: Tensor,
    lengths_B: Tensor,
    chosen_P: Tensor,
    rejected_P: Tensor,
    matched_margin_B: Tensor,
    *,
    beta: Positive = 0.1,
    label_smoothing: BelowHalf = 0.0,
) -> ItemLosses:
    """-log sigmoid(beta z), z = the policy's margin minus the reference's margin of the same rank in the step.

    With one pair it is DPO. Paired AOT, arXiv 2406.05882.
    """
    margin_P = logprobs_B[chosen_P] - logprobs_B[rejected_P]
    losses_P = smoothed(beta * (margin_P - matched_margin_B[chosen_P].detach()), label_smoothing)
    return paired(losses_P, beta * (logprobs_B - ref_logprobs_B), logprobs_B, lengths_B, chosen_P, rejected_P)


def matched_scores(
    logprobs_B: Tensor, ref_logprobs_B: Tensor, lengths_B: Tensor, chosen_P: Tensor, rejected_P: Tensor
) -> Tensor:
    """For each sequence of a pair: the log-ratio of the same rank on the other side; 0 for sequences in no pair."""
    whole_P = _whole(lengths_B, chosen_P, rejected_P)
    chosen_P, rejected_P = chosen_P[whole_P], rejected_P[whole_P]
    score_B, matched_B = (logprobs_B - ref_logprobs_B).detach(), torch.zeros_like(logprobs_B)
    won, lost = score_B[chosen_P].sort(stable=True), score_B[rejected_P].sort(stable=True)
    matched_B[chosen_P[won.indices]] = lost.values
    matched_B[rejected_P[lost.indices]] = won.values
    return matched_B.detach()


@step_statistic(matched_score_B=matched_scores)
@checked
def aot_unpaired(
    logprobs_B: Tensor,
    ref_logprobs_B: Tensor,
    lengths_B: Tensor,
    chosen_P: Tensor,
    rejected_P: Tensor,
    matched_score_B: Tensor,
    *,
    beta: Positive = 0.1,
    label_smoothing: BelowHalf = 0.0,
) -> ItemLosses:
    """-log sigmoid(beta (u_w - u_l)) between chosen and rejected responses of the same rank, whoever's they are.

    Each side is trained against the frozen value of the other; the two gradients together are that of the joint loss.
    """
    score_B = logprobs_B - ref_logprobs_B.detach()
    other_B = matched_score_B.detach()
    losses_P = smoothed(beta * (score_B[chosen_P] - other_B[chosen_P]), label_smoothing)
    mirrored_P = smoothed(beta * (other_B[rejected_P] - score_B[rejected_P]), label_smoothing)
    losses_P = losses_P + mirrored_P - mirrored_P.detach()  # the value is counted once, on the chosen side
    return paired(losses_P, beta * score_B, logprobs_B, lengths_B, chosen_P, rejected_P)


def _whole(lengths_B: Tensor, chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """Pairs without an empty member: the others are not counted, so they take no rank either."""
    return (lengths_B[chosen_P] > 0) & (lengths_B[rejected_P] > 0)
