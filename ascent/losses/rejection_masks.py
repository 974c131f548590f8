"""Rejection of tokens or sequences on which sampler and trainer disagree: token weights of 1 (keep) or 0.

Axes: T flat tokens, B sequences. With x = log pi_old(trainer) - log pi(sampler) of a token, without gradient:

  ratio_within      low <= e^s <= high, s being x of the token, its sum over the sequence, or its mean
  distance_within   s <= limit, s being k2 = x^2 / 2 or k3 = e^x - 1 - x of the token, its sum, mean or largest

Distances grow in both directions. Ratios are bounded as trainer over sampler (verl's k1 bounds the inverse). Both
may be combined, and combined with a weight from `rollout_correction`. Bounds are inclusive; x is clamped to +-20.

Worked example: x = (.2, -.1) in one sequence: k2 = (.02, .005), k3 = (.021403, .004837); sum of k2 .025, mean of k3
.013120, e^(sum of x) 1.105171.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from ascent.losses.rollout_correction import log_weights
from ascent.maths.segments import Segments
from ascent.parameter_ranges import NonNegative, OneOf, Positive, checked, ordered

RatioLevel = Annotated[str, OneOf(("token", "product", "geometric"))]
DistanceLevel = Annotated[str, OneOf(("token", "sum", "mean", "largest"))]
Measure = Annotated[str, OneOf(("k2", "k3"))]


@checked
@ordered("low", "high")
def ratio_within(
    old_logprobs_T: Tensor,
    sampler_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    *,
    level: RatioLevel = "geometric",
    low: NonNegative = 0.999,
    high: Positive = 1.001,
) -> Tensor:
    """Keep tokens, or whole sequences by their product or geometric mean, whose ratio trainer / sampler is in bounds.

    The product leaves the bounds the sooner the longer the completion is; the geometric mean does not depend on length.
    """
    x_T = log_weights(old_logprobs_T, sampler_logprobs_T, loss_mask_T)
    if level == "product":
        x_T = segments.broadcast(segments.sum(x_T))
    elif level == "geometric":
        x_T = segments.broadcast(segments.mean(x_T, loss_mask_T))
    # Compared as logarithms: e^x of a product would round a bound that was meant exactly.
    low_log, high_log = (
        torch.tensor(bound, dtype=x_T.dtype, device=x_T.device).log() for bound in (low, high)
    )
    return (x_T >= low_log) & (x_T <= high_log)


@checked
def distance_within(
    old_logprobs_T: Tensor,
    sampler_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    *,
    level: DistanceLevel = "mean",
    measure: Measure = "k3",
    limit: Positive = 0.001,
) -> Tensor:
    """Keep tokens, or whole sequences by the sum, mean or largest, whose distance between trainer and sampler is small.

    By the largest, one bad token drops its sequence.
    """
    x_T = log_weights(old_logprobs_T, sampler_logprobs_T, loss_mask_T)
    # Distances are 0 outside the trained tokens, so only the mean needs the mask.
    distance_T = 0.5 * x_T**2 if measure == "k2" else x_T.expm1() - x_T
    if level == "sum":
        distance_T = segments.broadcast(segments.sum(distance_T))
    elif level == "mean":
        distance_T = segments.broadcast(segments.mean(distance_T, loss_mask_T))
    elif level == "largest":
        largest_B = distance_T.new_zeros(segments.count).scatter_reduce(
            0, segments.ids_T, distance_T, "amax"
        )
        distance_T = segments.broadcast(largest_B)
    return distance_T <= limit
