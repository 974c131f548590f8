"""Linear recurrences from right to left, inside each segment, without a Python loop over tokens.

y_t = x_t + decay_t * y_{t+1} is solved by doubling: after pass k every y_t holds the first 2^k terms of its sum, so
log2(longest segment) passes of elementwise work finish it. A decay of 0 at each segment's last token keeps segments
apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.maths.segments import Segments


def reverse_scan(x_T: Tensor, decay_T: Tensor | float, segments: Segments) -> Tensor:
    """Solve y_t = x_t + decay_t * y_{t+1}, with y = 0 beyond each segment's end.

    x = [1, 1, 1], decay .5, one segment: y = [1.75, 1.5, 1].
    """
    segments.check(x_T)
    factor_T = _inner(
        torch.as_tensor(decay_T, dtype=x_T.dtype, device=x_T.device).expand_as(x_T), segments
    )
    longest = int(segments.lengths_B.max())
    y_T, step = x_T, 1
    while step < longest:
        # Beyond the end of the axis there is nothing to add, so only the first T - step entries change.
        y_T = torch.cat([torch.addcmul(y_T[:-step], factor_T[:-step], y_T[step:]), y_T[-step:]])
        if 2 * step < longest:
            factor_T = torch.cat(
                [factor_T[:-step] * factor_T[step:], torch.zeros_like(factor_T[-step:])]
            )
        step *= 2
    return y_T


def next_in_segment(x_T: Tensor, segments: Segments, beyond_B: Tensor | None = None) -> Tensor:
    """x_{t+1} inside each segment; at a segment's last token `beyond_B` of that segment (0 if not given)."""
    segments.check(x_T)
    beyond_T = torch.zeros_like(x_T) if beyond_B is None else segments.broadcast(beyond_B.to(x_T))
    shifted_T = torch.cat([x_T[1:], x_T[:1]])
    return torch.where(_is_last(segments), beyond_T, shifted_T)


def _is_last(segments: Segments) -> Tensor:
    ids_T = segments.ids_T
    return torch.cat(
        [ids_T[1:] != ids_T[:-1], ids_T.new_ones(min(1, ids_T.numel()), dtype=torch.bool)]
    )


def _inner(decay_T: Tensor, segments: Segments) -> Tensor:
    return torch.where(_is_last(segments), 0, decay_T)
