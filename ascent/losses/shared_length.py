"""LD-DPO: what a response says beyond the length both responses share counts less (arXiv 2409.06411).

Axes: T flat tokens, B sequences, P pairs. With n = min of a pair's lengths, tokens up to the n-th count 1 and later
ones `tail`. Only the longer response changes; tail 1 is DPO, tail 0 cuts it at the shared length.

Worked example: log-ratios (1, 1, 1) chosen and (1) rejected, tail .5: u_w = 1 + .5 + .5 = 2, u_l = 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.bounds import BelowHalf, Fraction, Positive, checked
from ascent.losses import preferences
from ascent.losses.loss import Each
from ascent.maths import masked
from ascent.maths.segments import Segments


@checked
def ld_dpo(
    logprobs_T: Tensor,
    reference_T: Tensor,
    trained_T: Tensor,
    segments: Segments,
    chosen_P: Tensor,
    rejected_P: Tensor,
    *,
    beta: Positive = 0.1,
    tail: Fraction = 0.5,
    label_smoothing: BelowHalf = 0.0,
) -> Each:
    """DPO in which tokens beyond the pair's shared length count `tail` (LD-DPO, arXiv 2409.06411)."""
    beyond_T = beyond_shared(trained_T, segments, chosen_P, rejected_P)
    return preferences.dpo(
        desensitised(logprobs_T, trained_T, beyond_T, segments, tail=tail),
        desensitised(reference_T.detach(), trained_T, beyond_T, segments, tail=tail),
        segments.sum(trained_T),
        chosen_P,
        rejected_P,
        beta=beta,
        label_smoothing=label_smoothing,
    )


def beyond_shared(trained_T: Tensor, segments: Segments, chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """Which tokens lie beyond the shared length of their pair."""
    lengths_B = segments.sum(trained_T)
    shared_P = torch.minimum(lengths_B[chosen_P], lengths_B[rejected_P])
    shared_B = lengths_B.clone()
    shared_B[chosen_P], shared_B[rejected_P] = shared_P, shared_P
    return trained_ranks(trained_T, segments) > segments.spread(shared_B)


def desensitised(x_T: Tensor, trained_T: Tensor, beyond_T: Tensor, segments: Segments, *, tail: float) -> Tensor:
    """Sums over trained tokens in which those beyond the shared length count `tail`."""
    kept_T = masked.kept(x_T, trained_T)
    return segments.sum(torch.where(beyond_T, tail * kept_T, kept_T))


def trained_ranks(trained_T: Tensor, segments: Segments) -> Tensor:
    """1 for a sequence's first trained token, 2 for its second, and so on; holes keep the rank before them."""
    counted_T = trained_T.to(torch.int64).cumsum(0)
    before_B = torch.cat([counted_T.new_zeros(1), counted_T])[segments.offsets[:-1]]
    return counted_T - segments.spread(before_B)
