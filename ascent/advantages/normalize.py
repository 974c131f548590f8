"""Scaling advantages: nothing, a group's std, one of three batch stds, or whitening over tokens or sequences.

Axes: T flat tokens, B sequences. Statistics are taken once, over the whole rollout batch, before minibatches
are formed. The three "batch stds" that the field calls by one name differ; for rewards
[1,1,0,0 | 1,0,0,0] in two groups of four:
  batch_std_raw      .517549   std of the rewards themselves
  batch_std_centered  .5        std of the rewards minus their group's mean (ours)
  batch_rms_group    .467707   root mean square about the group means: no second mean, no n - 1
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from ascent.advantages.group_baselines import deviation, group_mean_baseline, scored
from ascent.maths import masked
from ascent.maths.groups import Groups
from ascent.parameter_ranges import NonNegative, Positive, Range, checked

Ddof = Annotated[int, Range(at_least=0, at_most=1)]
EPS = 1e-4


def none(advantages_T: Tensor) -> Tensor:
    """No scaling."""
    return advantages_T


@checked
def group_std(
    advantages_B: Tensor, rewards_B: Tensor, groups: Groups, *, eps: Positive = EPS, ddof: Ddof = 1
) -> Tensor:
    """Divide by the std of the group's rewards plus eps (GRPO); weighs a prompt of pass rate p by 1/sqrt(p(1-p))."""
    std_G = deviation(rewards_B, groups)
    if ddof == 0:
        count_G = groups.sum(scored(rewards_B)).to(std_G.dtype)
        std_G = torch.where(
            count_G < 2, std_G, std_G * ((count_G - 1).clamp(min=0) / count_G.clamp(min=1)).sqrt()
        )
    return advantages_B / (groups.broadcast(std_G) + eps)


@checked
def batch_std_raw(advantages_B: Tensor, rewards_B: Tensor, *, eps: Positive = EPS) -> Tensor:
    """Divide by the std of all raw rewards of the batch plus eps."""
    return _divide(advantages_B, masked.variance(rewards_B, scored(rewards_B)).sqrt(), eps)


@checked
def batch_std_centered(
    advantages_B: Tensor, rewards_B: Tensor, groups: Groups, *, eps: Positive = EPS
) -> Tensor:
    """Divide by the std, over the batch, of rewards minus their group's mean, plus eps (LitePPO as we read it)."""
    centered_B = group_mean_baseline(rewards_B, groups).advantages_B
    return _divide(advantages_B, masked.variance(centered_B, scored(rewards_B)).sqrt(), eps)


@checked
def batch_rms_group(
    advantages_B: Tensor, rewards_B: Tensor, groups: Groups, *, eps: Positive = EPS
) -> Tensor:
    """Divide by the root mean square of rewards about their group's mean, plus eps (AReaL)."""
    centered_B = group_mean_baseline(rewards_B, groups).advantages_B
    return _divide(advantages_B, masked.mean(centered_B**2, scored(rewards_B)).sqrt(), eps)


@checked
def batch_zscore(advantages_B: Tensor, scored_B: Tensor, *, eps: Positive = EPS) -> Tensor:
    """Center and divide by std + eps over the sequences of the batch (GDPO's second step)."""
    off_B = masked.kept(advantages_B - masked.mean(advantages_B, scored_B), scored_B)
    return _divide(off_B, masked.variance(advantages_B, scored_B).sqrt(), eps)


@checked
def whiten_sequence(
    advantages_B: Tensor, scored_B: Tensor, *, eps: Positive = 1e-8, ddof: Ddof = 1
) -> Tensor:
    """Mean 0, variance 1 over sequences: a long answer counts as much as a short one."""
    return masked.whiten(advantages_B, scored_B, ddof=ddof, eps=eps)


@checked
def whiten_token(
    advantages_T: Tensor, loss_mask_T: Tensor, *, eps: Positive = 1e-8, ddof: Ddof = 1
) -> Tensor:
    """Mean 0, variance 1 over trained tokens (PPO, REINFORCE++): long answers dominate the statistics."""
    return masked.whiten(advantages_T, loss_mask_T, ddof=ddof, eps=eps)


@checked
def plus_teacher(
    advantages_T: Tensor,
    old_logprobs_T: Tensor,
    teacher_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    *,
    coefficient: NonNegative = 1.0,
) -> Tensor:
    """Add coefficient * (log teacher - log pi) of each token: the teacher's preference on the policy's own samples.

    Advantage .5, teacher .2 nats above, coefficient .3: .56.
    """
    gap_T = masked.kept(teacher_logprobs_T.detach(), loss_mask_T) - masked.kept(
        old_logprobs_T.detach(), loss_mask_T
    )
    return advantages_T + coefficient * gap_T


def _divide(x_B: Tensor, std: Tensor, eps: float) -> Tensor:
    """x / (std + eps); x unscaled where the std is rounding noise."""
    flat = std**2 < masked.SMALLEST_VARIANCE
    return torch.where(flat, x_B, x_B / (std + eps))
