"""Policy losses that read a whole sequence, its later tokens, or its group.

Axes: T flat tokens, B sequences, G groups.

  vespo       one smooth weight per sequence, from the product of its ratios
  fipo        PPO's clip, weighted by what the policy has done to the tokens that follow
  real        completions as a classification: right ones above wrong ones of the same prompt
  regression  a squared loss: beta * log(pi / ref) of the sequence against its advantage
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from ascent.cells import step_statistic
from ascent.losses.policy_losses import PolicyLoss, clip, dual_clip
from ascent.losses.ratios import GUARD, differences
from ascent.maths import masked
from ascent.maths.groups import Groups
from ascent.maths.reverse_scan import reverse_scan
from ascent.maths.segments import Segments
from ascent.parameter_ranges import RARE, Fraction, NonNegative, Positive, Range, checked

LOWEST = -18.420680743952367  # log 1e-8: a weight is never smaller


@checked
def vespo(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    correction_T: Tensor,
    *,
    power_positive: Annotated[Positive, RARE] = 2.0,
    decay_positive: Annotated[Positive, RARE] = 3.0,
    power_negative: Annotated[Positive, RARE] = 3.0,
    decay_negative: Annotated[Positive, RARE] = 2.0,
) -> PolicyLoss:
    """-sg(W^k e^(lambda (1 - W))) A log pi, W the product of the sequence's ratios (VESPO, arXiv 2602.10693).

    W is 1 on-policy, and so is the weight; it falls smoothly on both sides. The weights of the rollout correction enter
    W instead of multiplying the loss. log W = .2: .767814 for A >= 0 (k 2, lambda 3), 1.170223 for A < 0 (k 3, lambda
    2).
    """
    moved_T = differences(logprobs_T.detach(), old_logprobs_T, loss_mask_T).clamp(-GUARD, GUARD)
    sampler_T = (
        masked.kept(correction_T.detach(), loss_mask_T).clamp(min=1e-8).log().clamp(max=GUARD)
    )
    log_B = segments.sum(moved_T + masked.kept(sampler_T, loss_mask_T)).clamp(LOWEST, GUARD)
    log_T = segments.broadcast(log_B)
    advantages_T = masked.kept(advantages_T.detach(), loss_mask_T)
    up_T = advantages_T >= 0
    power_T = torch.full_like(log_T, power_negative).masked_fill(up_T, power_positive)
    decay_T = torch.full_like(log_T, decay_negative).masked_fill(up_T, decay_positive)
    weight_T = torch.nan_to_num(
        torch.exp(decay_T + power_T * log_T - decay_T * log_T.exp()), posinf=0.0
    )
    return PolicyLoss(-weight_T * advantages_T * masked.kept(logprobs_T, loss_mask_T), {})


@checked
def fipo(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    log_ratio_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    *,
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
    gamma: Annotated[Fraction, RARE] = 0.978572062087700,
    radius: Annotated[NonNegative, RARE] = 0.2,
    high_only: Annotated[bool, RARE] = True,
    safety: Annotated[NonNegative, RARE] = 4.0,
    cap: Annotated[float, Range(above=1, or_zero=True)] = 0.0,
) -> PolicyLoss:
    """PPO's clip times e^(future drift): a token counts by how the policy has moved on what followed it (FIPO).

    F_t = sum over later positions of gamma^(k - t) log-ratio; the factor e^F is held in [1, 1 + radius] (or 1 +-
    radius; radius 0: at e^20 only). Where A < 0 and the ratio is above `safety` (0: never) it is held in [.8, 1]. `cap`
    above 0 is a dual clip that also ends a drift. Log-ratios (.1, .2, -.1), gamma .5, radius 0: 1.191246, 1.161834,
    .904837.
    """
    if cap:
        # A cap below 1 + high takes over the upper clip as well.
        inner = dual_clip(
            log_ratio_T,
            advantages_T,
            loss_mask_T,
            low=low,
            high=min(high, cap - 1),
            cap=max(cap, 1 + high),
        )
    else:
        inner = clip(log_ratio_T, advantages_T, loss_mask_T, low=low, high=high)
    ratio_T, moved_T = (
        log_ratio_T.detach().exp(),
        differences(logprobs_T.detach(), old_logprobs_T, loss_mask_T),
    )
    if cap:
        moved_T = torch.where(ratio_T > cap, 0, moved_T)
    factor_T = reverse_scan(moved_T, gamma, segments).clamp(-GUARD, GUARD).exp()
    if radius:
        factor_T = factor_T.clamp(1.0 if high_only else 1 - radius, 1 + radius)
    if safety:
        unsafe_T = (masked.kept(advantages_T.detach(), loss_mask_T) < 0) & (ratio_T > safety)
        factor_T = torch.where(unsafe_T, factor_T.clamp(0.8, 1.0), factor_T)
    return PolicyLoss(factor_T * inner.loss_T, inner.clip_masks)


def real_value(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    groups: Groups,
    *,
    tau: Annotated[Positive, RARE] = 0.5,
) -> Tensor:
    """REAL's loss of each sequence's group: log(1 + sum over wrong of e^S) + log(1 + sum over right of e^-S)."""
    sides_B2, _, log_G2 = _two_sides(
        logprobs_T, old_logprobs_T, advantages_T, loss_mask_T, segments, groups, tau
    )
    live_G = (groups.sum(sides_B2) > 0).all(1)
    return groups.broadcast(torch.where(live_G, log_G2.sum(1), 0))


def real_slope(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    groups: Groups,
    *,
    tau: Annotated[Positive, RARE] = 0.5,
) -> Tensor:
    """How that loss moves with a sequence's own S, times the number of its group's sequences with trained tokens."""
    sides_B2, level_B, log_G2 = _two_sides(
        logprobs_T, old_logprobs_T, advantages_T, loss_mask_T, segments, groups, tau
    )
    live_G, right_B = (groups.sum(sides_B2) > 0).all(1), sides_B2[:, 1]
    log_B2 = groups.broadcast(log_G2)
    share_B = (level_B - torch.where(right_B, log_B2[:, 1], log_B2[:, 0])).exp()
    slope_B = torch.where(right_B, -share_B, share_B)
    members_B = groups.broadcast(groups.sum(sides_B2).sum(1)).to(slope_B.dtype)
    return torch.where(groups.broadcast(live_G), slope_B * members_B, 0)


@step_statistic(real_value_B=real_value, real_slope_B=real_slope)
@checked
def real(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    real_value_B: Tensor,
    real_slope_B: Tensor,
    *,
    tau: Annotated[Positive, RARE] = 0.5,
) -> PolicyLoss:
    """Rank right completions above wrong ones of the same prompt; S = mean log-ratio / tau (REAL, as in ms-swift).

    The advantage only says which side a completion is on (above 0: right). A group with one side only gives 0. Meant
    for the aggregation `group_mean`. Mean log-ratios (.1, -.2, .3), the first right, tau .5: 1.848739.
    """
    score_B = segments.mean(differences(logprobs_T, old_logprobs_T, loss_mask_T), loss_mask_T) / tau
    loss_B = real_value_B + real_slope_B * (score_B - score_B.detach())
    return PolicyLoss(segments.broadcast(loss_B), {})


def _two_sides(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    groups: Groups,
    tau: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Which sequences are (wrong, right); S of the wrong and -S of the right ones; log(1 + sum of e^those) per side.

    A sequence without trained tokens, such as an unscored one, is on neither side.
    """
    trained_B = segments.sum(loss_mask_T) > 0
    right_B = segments.mean(advantages_T, loss_mask_T) > 0
    score_B = (
        segments.mean(differences(logprobs_T.detach(), old_logprobs_T, loss_mask_T), loss_mask_T)
        / tau
    )
    level_B = torch.where(right_B, -score_B, score_B)
    # Each side's largest exponent, at least the 0 of the 1, is taken out before exp, which would overflow.
    top_G2 = level_B.new_zeros(2 * groups.count).scatter_reduce(
        0, 2 * groups.ids_B + right_B, level_B, "amax"
    )
    top_G2 = top_G2.view(groups.count, 2)
    sides_B2 = torch.stack([~right_B, right_B], 1) & trained_B.unsqueeze(1)
    exp_B2 = torch.where(
        sides_B2, level_B.unsqueeze(1) - groups.broadcast(top_G2), -float("inf")
    ).exp()
    return sides_B2, level_B, top_G2 + torch.log1p(torch.expm1(-top_G2) + groups.sum(exp_B2))


@checked
def regression(
    logprobs_T: Tensor,
    ref_logprobs_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    *,
    beta: Positive = 1e-3,
) -> PolicyLoss:
    """(beta * sum over the sequence of log pi - log ref, minus its advantage)^2: A*-PO's second stage.

    arXiv 2505.20686: where the optimal policy is known to satisfy beta log(pi / ref) = A*, fit it. One number per
    sequence, on each of its tokens: for the aggregation `sequence_mean_token_mean`.
    """
    fitted_B = beta * segments.sum(differences(logprobs_T, ref_logprobs_T, loss_mask_T))
    target_B = segments.mean(advantages_T.detach(), loss_mask_T)
    return PolicyLoss(segments.broadcast((fitted_B - target_B) ** 2), {})
