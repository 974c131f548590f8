"""Policy losses per token, from log-ratios and advantages.

Axes: T flat tokens. The gradient with respect to a token's log-prob is -phi(ratio, sign A) * A with this phi
(tests/losses/test_policy_losses.py compares autograd with the table):

  plain       1                                     surrogate  ratio
  clip        ratio, or 0 where clipped             dual_clip  as clip, and 0 where A < 0 and ratio > cap
  cispo       ratio clamped to [floor, cap]          sapo       ratio * sech^2(tau (ratio - 1) / 2)
  gmpo        exp(mean clipped log-ratio), or 0 where the token is clipped; divided by the sequence's length
  dppo_tv     ratio at most cap, or 0 where the probability itself has moved too far; dppo_kl the same by a KL
  dro         1 - beta * log-ratio / A

Losses that read a whole sequence or a whole step are in `sequence_policy_losses` and `covariance`. Advantages never
carry a gradient. `clip_masks` say which tokens were clipped, for the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ascent.maths import masked
from ascent.maths.segments import Segments
from ascent.parameter_ranges import AboveOne, NonNegative, Positive, checked, ordered


class PolicyLoss(NamedTuple):
    loss_T: Tensor
    clip_masks: Mapping[str, Tensor]


def plain(logprobs_T: Tensor, advantages_T: Tensor, loss_mask_T: Tensor) -> PolicyLoss:
    """-A log pi: REINFORCE, no ratio and no bound; correct only for on-policy data."""
    logprobs_T, advantages_T = (
        masked.kept(logprobs_T, loss_mask_T),
        _frozen(advantages_T, loss_mask_T),
    )
    return PolicyLoss(-advantages_T * logprobs_T, {})


def surrogate(log_ratio_T: Tensor, advantages_T: Tensor, loss_mask_T: Tensor) -> PolicyLoss:
    """-A ratio: the importance-weighted surrogate of TRPO and PPO-penalty, unbounded by itself."""
    return PolicyLoss(-_frozen(advantages_T, loss_mask_T) * log_ratio_T.exp(), {})


@checked
def clip(
    log_ratio_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    *,
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
) -> PolicyLoss:
    """PPO's pessimistic clip: no reward for moving beyond 1 - low or 1 + high in the direction A favors.

    Advantage .2, ratio e^.3 = 1.35, low = high = .2: the objective is 1.2 * .2 = .24 and the gradient 0. The other two
    corners (A > 0 with a small ratio, A < 0 with a large one) keep their full gradient; so does the exact boundary.
    """
    advantages_T, ratio_T = _frozen(advantages_T, loss_mask_T), log_ratio_T.exp()
    too_high_T = (advantages_T > 0) & (ratio_T > 1 + high)
    too_low_T = (advantages_T < 0) & (ratio_T < 1 - low)
    clipped_T = torch.where(too_high_T, 1 + high, torch.where(too_low_T, 1 - low, ratio_T))
    return PolicyLoss(
        -advantages_T * clipped_T,
        {"policy/clip_frac_high": too_high_T, "policy/clip_frac_low": too_low_T},
    )


@checked
def dual_clip(
    log_ratio_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    *,
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
    cap: AboveOne = 3.0,
) -> PolicyLoss:
    """PPO's clip, and for A < 0 a bound on the loss itself: beyond ratio `cap` it is cap |A| (arXiv 1912.09729)."""
    inner = clip(log_ratio_T, advantages_T, loss_mask_T, low=low, high=high)
    advantages_T = _frozen(advantages_T, loss_mask_T)
    capped_T = (advantages_T < 0) & (log_ratio_T.exp() > cap)
    return PolicyLoss(
        torch.where(capped_T, -advantages_T * cap, inner.loss_T),
        {**inner.clip_masks, "policy/clip_frac_dual": capped_T},
    )


@checked
@ordered("floor", "cap")
def cispo(
    logprobs_T: Tensor,
    log_ratio_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    *,
    floor: NonNegative = 0.0,
    cap: Positive = 5.0,
) -> PolicyLoss:
    """-sg(ratio clamped to [floor, cap]) A log pi: a bounded weight, no token loses its gradient (MiniMax-M1, ScaleRL).

    `floor` and `cap` are ratios, not radii: cap .2 would silently divide the learning rate by five.
    """
    ratio_T = log_ratio_T.detach().exp()
    weight_T = ratio_T.clamp(floor, cap)
    loss_T = -weight_T * _frozen(advantages_T, loss_mask_T) * masked.kept(logprobs_T, loss_mask_T)
    return PolicyLoss(
        loss_T, {"policy/clip_frac_cap": ratio_T > cap, "policy/clip_frac_floor": ratio_T < floor}
    )


@checked
def sapo(
    log_ratio_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    *,
    tau_positive: Positive = 1.0,
    tau_negative: Positive = 1.05,
) -> PolicyLoss:
    """A soft clip (4/tau) sigmoid(tau (ratio - 1)), steeper for A <= 0 (SAPO). Its value at ratio 1 is 2/tau, not 1."""
    advantages_T = _frozen(advantages_T, loss_mask_T)
    tau_T = torch.full_like(advantages_T, tau_negative).masked_fill(advantages_T > 0, tau_positive)
    soft_T = 4 / tau_T * torch.sigmoid(tau_T * (log_ratio_T.exp() - 1))
    return PolicyLoss(-advantages_T * soft_T, {})


@checked
def gmpo(
    log_ratio_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    *,
    low: NonNegative = 0.4,
    high: NonNegative = 0.4,
) -> PolicyLoss:
    """Clip each token's LOG-ratio on the side A favors, then use the geometric mean over the sequence (GMPO).

    Takes token-level log-ratios; `low` and `high` live in log space: .4 allows ratios from .67 to 1.49.
    """
    advantages_T = _frozen(advantages_T, loss_mask_T)
    too_high_T = (advantages_T > 0) & (log_ratio_T > high)
    too_low_T = (advantages_T < 0) & (log_ratio_T < -low)
    clipped_T = torch.where(too_high_T, high, torch.where(too_low_T, -low, log_ratio_T))
    geometric_T = segments.broadcast(segments.mean(clipped_T, loss_mask_T).exp())
    return PolicyLoss(
        -advantages_T * geometric_T,
        {"policy/clip_frac_high": too_high_T, "policy/clip_frac_low": too_low_T},
    )


@checked
def dppo_tv(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    log_ratio_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    *,
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
    cap: Positive = 20.0,
) -> PolicyLoss:
    """-sg(min(ratio, cap)) A log pi, dropped where the PROBABILITY moved too far the way A favors.

    DPPO by total variation (arXiv 2602.04879). From .001 to .003 the ratio is 3, but nothing has moved: kept. From .5
    to .8 the ratio is 1.6 and the token is dropped at .2.
    """
    logprobs_T, old_logprobs_T = (
        masked.kept(logprobs_T, loss_mask_T),
        masked.kept(old_logprobs_T.detach(), loss_mask_T),
    )
    moved_T = logprobs_T.detach().exp() - old_logprobs_T.exp()
    advantages_T = _frozen(advantages_T, loss_mask_T)
    far_T = torch.where(advantages_T > 0, moved_T > high, moved_T < -low)
    return _proximal(logprobs_T, log_ratio_T, advantages_T, far_T, cap)


@checked
def dppo_kl(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    log_ratio_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    *,
    low: NonNegative = 0.05,
    high: NonNegative = 0.05,
    cap: Positive = 20.0,
) -> PolicyLoss:
    """DPPO whose distance is the KL between "this token" and "any other" under the old and the new policy.

    arXiv 2602.04879. From .5 to .6 that KL is .020411.
    """
    logprobs_T, old_logprobs_T = (
        masked.kept(logprobs_T, loss_mask_T),
        masked.kept(old_logprobs_T.detach(), loss_mask_T),
    )
    now_T, then_T = logprobs_T.detach().exp(), old_logprobs_T.exp()
    rest_T = (1 - then_T) * torch.log((1 - then_T + 1e-8) / (1 - now_T + 1e-8))
    far_T = then_T * (old_logprobs_T - logprobs_T.detach()) + rest_T
    advantages_T = _frozen(advantages_T, loss_mask_T)
    far_T = torch.where(
        advantages_T > 0, (far_T > high) & (now_T > then_T), (far_T > low) & (now_T < then_T)
    )
    return _proximal(logprobs_T, log_ratio_T, advantages_T, far_T, cap)


def _proximal(
    logprobs_T: Tensor, log_ratio_T: Tensor, advantages_T: Tensor, far_T: Tensor, cap: float
) -> PolicyLoss:
    ratio_T = log_ratio_T.detach().exp()
    loss_T = -advantages_T * ratio_T.clamp(max=cap) * logprobs_T
    return PolicyLoss(
        torch.where(far_T, 0, loss_T),
        {"policy/clip_frac_divergence": far_T, "policy/clip_frac_cap": ~far_T & (ratio_T > cap)},
    )


@checked
def dro(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    *,
    beta: Positive = 0.1,
) -> PolicyLoss:
    """-(A log pi - beta/2 (log pi - log old)^2): policy gradient with a quadratic penalty (DRO, arXiv 2405.19107)."""
    logprobs_T, old_logprobs_T = (
        masked.kept(logprobs_T, loss_mask_T),
        masked.kept(old_logprobs_T.detach(), loss_mask_T),
    )
    penalty_T = 0.5 * beta * (logprobs_T - old_logprobs_T) ** 2
    return PolicyLoss(penalty_T - _frozen(advantages_T, loss_mask_T) * logprobs_T, {})


def _frozen(advantages_T: Tensor, loss_mask_T: Tensor) -> Tensor:
    return masked.kept(advantages_T.detach(), loss_mask_T)
