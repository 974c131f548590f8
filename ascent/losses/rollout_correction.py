"""Importance weights for a sampler that differs from the trainer: other kernels, other precision, older weights.

Axes: T flat tokens, B sequences. w = pi_old(trainer) / pi_sampler, without gradient, multiplies the policy
term only, never KL or entropy. A rejected token gets weight 0 but still counts in the denominator. A NaN log-prob from
the sampler counts as w = 1; under bypass the trainer's takes its place. Names say product or geometric, because
"sequence" means both elsewhere:

  token_truncate      min(w, cap)                                  TIS
  token_mask          w where low <= w <= high, else 0             MIS, IcePop
  product_truncate    min(prod w, cap), on every token             sequence TIS
  product_mask        prod w where low <= prod w <= high, else 0   sequence MIS
  geometric_truncate  min(geometric mean of w, cap)
  geometric_mask      min(w, cap) where low <= geometric mean <= high, else 0
  geometric_filter    1 where low <= geometric mean <= high, else 0
  token_normalized    token_truncate divided by its mean over the step's tokens
  product_normalized  product_truncate divided by its mean over the step's sequences
                      (a custom row may mask in both, as token_mask and product_mask do: `reject`)
  bypass              no old policy at all: the policy loss's ratio is pi / pi_sampler

The product is unbiased and explodes with length: a drift of .012 nats a token passes a cap of 3 after 91 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from ascent.cells import step_statistic
from ascent.losses.ratios import GUARD
from ascent.maths import masked
from ascent.maths.segments import Segments
from ascent.parameter_ranges import RARE, NonNegative, Positive, checked, ordered

Low = Annotated[NonNegative, RARE]
Reject = Annotated[bool, RARE]


class Correction(NamedTuple):
    """A weight per token, the log-probs of the ratio's denominator, and which tokens were rejected or capped."""

    weight_T: Tensor
    anchor_T: Tensor
    clip_masks: Mapping[str, Tensor]


def none(old_logprobs_T: Tensor) -> Correction:
    """No correction: the sampler's log-probs are the trainer's."""
    return Correction(torch.ones_like(old_logprobs_T), old_logprobs_T.detach(), {})


def bypass(sampler_logprobs_T: Tensor, old_logprobs_T: Tensor | None = None) -> Correction:
    """Take the sampler's log-probs as the old policy's, where it gave them: the clip bounds pi / pi_sampler."""
    anchor_T = sampler_logprobs_T.detach()
    if old_logprobs_T is not None:
        anchor_T = torch.where(torch.isnan(anchor_T), old_logprobs_T.detach(), anchor_T)
    return Correction(torch.ones_like(anchor_T), anchor_T, {})


@checked
@ordered("floor", "cap")
def token_truncate(
    old_logprobs_T: Tensor,
    sampler_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    *,
    cap: Positive = 2.0,
    floor: NonNegative = 0.0,
) -> Correction:
    """Token-level truncated importance sampling: w clamped to [floor, cap]."""
    weight_T = log_weights(old_logprobs_T, sampler_logprobs_T, loss_mask_T).exp()
    return Correction(
        weight_T.clamp(floor, cap),
        old_logprobs_T.detach(),
        {"sampler/is_capped_frac": weight_T > cap},
    )


@checked
@ordered("low", "high")
def token_mask(
    old_logprobs_T: Tensor,
    sampler_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    *,
    low: NonNegative = 0.5,
    high: Positive = 5.0,
) -> Correction:
    """Token-level masking (MIS, IcePop): w inside [low, high], 0 outside."""
    weight_T = log_weights(old_logprobs_T, sampler_logprobs_T, loss_mask_T).exp()
    return _masked(weight_T, (weight_T >= low) & (weight_T <= high), old_logprobs_T)


@checked
@ordered("floor", "cap")
def product_truncate(
    old_logprobs_T: Tensor,
    sampler_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    *,
    cap: Positive = 2.0,
    floor: NonNegative = 0.0,
) -> Correction:
    """Sequence-level truncated importance sampling: the product of w clamped to [floor, cap], on every token."""
    product_T = segments.broadcast(
        _product(old_logprobs_T, sampler_logprobs_T, loss_mask_T, segments)
    )
    return Correction(
        product_T.clamp(floor, cap),
        old_logprobs_T.detach(),
        {"sampler/is_capped_frac": product_T > cap},
    )


@checked
@ordered("low", "high")
def product_mask(
    old_logprobs_T: Tensor,
    sampler_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    *,
    low: NonNegative = 0.0,
    high: Positive = 3.0,
) -> Correction:
    """Sequence-level masking: the product of w inside [low, high], 0 outside."""
    product_T = segments.broadcast(
        _product(old_logprobs_T, sampler_logprobs_T, loss_mask_T, segments)
    )
    return _masked(product_T, (product_T >= low) & (product_T <= high), old_logprobs_T)


@checked
def geometric_truncate(
    old_logprobs_T: Tensor,
    sampler_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    *,
    cap: Positive = 2.0,
) -> Correction:
    """The geometric mean of w over the sequence, at most cap, on every token."""
    level_T = segments.broadcast(
        _geometric(old_logprobs_T, sampler_logprobs_T, loss_mask_T, segments)
    )
    return Correction(
        level_T.clamp(max=cap), old_logprobs_T.detach(), {"sampler/is_capped_frac": level_T > cap}
    )


@checked
@ordered("low", "high")
def geometric_mask(
    old_logprobs_T: Tensor,
    sampler_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    *,
    low: NonNegative = 0.5,
    high: Positive = 5.0,
    cap: Positive = 5.0,
) -> Correction:
    """Token weights, at most cap, in sequences whose geometric mean lies in [low, high]; 0 in the others."""
    weight_T = log_weights(old_logprobs_T, sampler_logprobs_T, loss_mask_T).exp().clamp(max=cap)
    level_T = segments.broadcast(
        _geometric(old_logprobs_T, sampler_logprobs_T, loss_mask_T, segments)
    )
    return _masked(weight_T, (level_T >= low) & (level_T <= high), old_logprobs_T)


@checked
@ordered("low", "high")
def geometric_filter(
    old_logprobs_T: Tensor,
    sampler_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    *,
    low: NonNegative = 0.999,
    high: Positive = 1.001,
) -> Correction:
    """Keep or drop whole sequences by their geometric mean, without weighting what is kept."""
    level_T = segments.broadcast(
        _geometric(old_logprobs_T, sampler_logprobs_T, loss_mask_T, segments)
    )
    return _masked(torch.ones_like(level_T), (level_T >= low) & (level_T <= high), old_logprobs_T)


@checked
@ordered("low", "cap")
def mean_token_weight(
    old_logprobs_T: Tensor,
    sampler_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    *,
    cap: Positive = 2.0,
    low: Low = 0.0,
    reject: Reject = False,
) -> Tensor:
    """The mean of the weights clamped to [low, cap] over the step's trained tokens; 1 where there are none."""
    return _mean_or_one(
        _clamped_tokens(old_logprobs_T, sampler_logprobs_T, loss_mask_T, low, cap, reject).weight_T,
        loss_mask_T,
    )


@step_statistic(mean_weight=mean_token_weight)
@checked
@ordered("low", "cap")
def token_normalized(
    old_logprobs_T: Tensor,
    sampler_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    mean_weight: Tensor,
    *,
    cap: Positive = 2.0,
    low: Low = 0.0,
    reject: Reject = False,
) -> Correction:
    """Token-level truncated weights divided by their mean over the step, so that drift does not change the step size.

    With `reject` a weight outside [low, cap] is 0 and counts as that in the mean: the more is rejected, the larger are
    the weights that are left (verl's rollout_is_batch_normalize with two bounds).
    """
    found = _clamped_tokens(old_logprobs_T, sampler_logprobs_T, loss_mask_T, low, cap, reject)
    return found._replace(weight_T=found.weight_T / mean_weight)


@checked
@ordered("low", "cap")
def mean_product_weight(
    old_logprobs_T: Tensor,
    sampler_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    *,
    cap: Positive = 2.0,
    low: Low = 0.0,
    reject: Reject = False,
) -> Tensor:
    """The mean of the clamped products of w over the step's sequences with trained tokens; 1 where there are none."""
    clamped_T = _clamped_products(
        old_logprobs_T, sampler_logprobs_T, loss_mask_T, segments, low, cap, reject
    ).weight_T
    return _mean_or_one(segments.mean(clamped_T, loss_mask_T), segments.sum(loss_mask_T) > 0)


@step_statistic(mean_weight=mean_product_weight)
@checked
@ordered("low", "cap")
def product_normalized(
    old_logprobs_T: Tensor,
    sampler_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    mean_weight: Tensor,
    *,
    cap: Positive = 2.0,
    low: Low = 0.0,
    reject: Reject = False,
) -> Correction:
    """Sequence-level truncated weights divided by their mean over the whole step's sequences."""
    found = _clamped_products(
        old_logprobs_T, sampler_logprobs_T, loss_mask_T, segments, low, cap, reject
    )
    return found._replace(weight_T=found.weight_T / mean_weight)


def _clamped_tokens(
    old_logprobs_T: Tensor,
    sampler_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    low: float,
    cap: float,
    reject: bool,
) -> Correction:
    if reject:
        return token_mask(old_logprobs_T, sampler_logprobs_T, loss_mask_T, low=low, high=cap)
    return token_truncate(old_logprobs_T, sampler_logprobs_T, loss_mask_T, floor=low, cap=cap)


def _clamped_products(
    old_logprobs_T: Tensor,
    sampler_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    low: float,
    cap: float,
    reject: bool,
) -> Correction:
    if reject:
        return product_mask(
            old_logprobs_T, sampler_logprobs_T, loss_mask_T, segments, low=low, high=cap
        )
    return product_truncate(
        old_logprobs_T, sampler_logprobs_T, loss_mask_T, segments, floor=low, cap=cap
    )


def log_weights(old_logprobs_T: Tensor, sampler_logprobs_T: Tensor, loss_mask_T: Tensor) -> Tensor:
    """log w on trained tokens, 0 elsewhere and where the sampler gave none; clamped to +-20 against overflow."""
    return _differences(old_logprobs_T, sampler_logprobs_T, loss_mask_T).clamp(-GUARD, GUARD)


def _differences(old_logprobs_T: Tensor, sampler_logprobs_T: Tensor, loss_mask_T: Tensor) -> Tensor:
    known_T = loss_mask_T & ~torch.isnan(sampler_logprobs_T)
    return masked.kept(old_logprobs_T.detach(), known_T) - masked.kept(
        sampler_logprobs_T.detach(), known_T
    )


def _product(
    old_logprobs_T: Tensor, sampler_logprobs_T: Tensor, loss_mask_T: Tensor, segments: Segments
) -> Tensor:
    # The sum is clamped, not its terms: tokens of +25 and -25 nats cancel.
    return (
        segments.sum(_differences(old_logprobs_T, sampler_logprobs_T, loss_mask_T))
        .clamp(-GUARD, GUARD)
        .exp()
    )


def _geometric(
    old_logprobs_T: Tensor, sampler_logprobs_T: Tensor, loss_mask_T: Tensor, segments: Segments
) -> Tensor:
    return segments.mean(
        log_weights(old_logprobs_T, sampler_logprobs_T, loss_mask_T), loss_mask_T
    ).exp()


def _mean_or_one(weight: Tensor, keep: Tensor) -> Tensor:
    mean = masked.mean(weight, keep)
    return torch.where(mean > 0, mean, 1.0)  # 0 where nothing is kept, or all of it was rejected


def _masked(weight_T: Tensor, keep_T: Tensor, old_logprobs_T: Tensor) -> Correction:
    return Correction(
        torch.where(keep_T, weight_T, 0),
        old_logprobs_T.detach(),
        {"sampler/is_rejected_frac": ~keep_T},
    )
