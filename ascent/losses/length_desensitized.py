"""LD-DPO weights: tokens beyond the length that both responses of a pair share count less.

Axes: T flat tokens, B sequences, P pairs. arXiv 2409.06411. With n = min of a pair's lengths, tokens up to the n-th
count 1 and later ones `tail`. The weights enter the policy's and the reference's sums of log-probs, which every pair
loss reads; lengths, and what reads tokens (WPO, NLL), stay as they are. Only the longer response changes; tail 1
changes nothing, tail 0 truncates at the shared length.

Worked example: log-ratios (1, 1, 1) chosen and (1) rejected, tail .5: u_w = 1 + .5 + .5 = 2, u_l = 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.maths.segments import Segments
from ascent.parameter_ranges import Fraction, checked


@checked
def length_desensitized(
    loss_mask_T: Tensor,
    segments: Segments,
    chosen_P: Tensor,
    rejected_P: Tensor,
    *,
    tail: Fraction = 0.5,
) -> Tensor:
    """Tokens beyond the length that a pair's responses share count `tail` in their sums (LD-DPO, arXiv 2409.06411)."""
    beyond_T = beyond_shared(loss_mask_T, segments, chosen_P, rejected_P)
    return torch.ones_like(beyond_T, dtype=torch.float64).masked_fill(beyond_T, tail)


def beyond_shared(
    loss_mask_T: Tensor, segments: Segments, chosen_P: Tensor, rejected_P: Tensor
) -> Tensor:
    """Which tokens lie beyond the shared length of their pair."""
    lengths_B = segments.sum(loss_mask_T)
    shared_P = torch.minimum(lengths_B[chosen_P], lengths_B[rejected_P])
    shared_B = lengths_B.clone()
    shared_B[chosen_P], shared_B[rejected_P] = shared_P, shared_P
    return trained_ranks(loss_mask_T, segments) > segments.broadcast(shared_B)


def trained_ranks(loss_mask_T: Tensor, segments: Segments) -> Tensor:
    """1 for a sequence's first trained token, 2 for its second, and so on; holes keep the rank before them."""
    counted_T = loss_mask_T.to(torch.int64).cumsum(0)
    before_B = torch.cat([counted_T.new_zeros(1), counted_T])[segments.offsets[:-1]]
    return counted_T - segments.broadcast(before_B)
