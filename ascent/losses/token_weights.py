"""Token weights: how much the loss of each token or pair counts, without gradient. Denominators do not change.

Axes: T flat tokens, B sequences, P pairs. With rollouts a weight multiplies the policy term only, not KL or entropy;
with files the row's own loss, or the tokens in the sums that a pair loss reads. Several weights are multiplied.

  top_entropy        1 on the tokens of highest entropy in the whole step, 0 on the rest
  near_policy        0 on a negative sample that the policy has already left
  teacher_agreement  more where a teacher would have pushed the same way (RLSD)
  probability        pi of the token itself: DFT, for supervised data
  own_likelihood     how likely a pair is under the policy: WPO, for preference data

`rejection_masks` has weights that drop what sampler and trainer disagree about; `length_desensitized` has LD-DPO's.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from ascent.cells import step_statistic
from ascent.maths import masked
from ascent.maths.segments import Segments
from ascent.parameter_ranges import RARE, Fraction, NonNegative, checked


@checked
def entropy_floor(entropy_T: Tensor, loss_mask_T: Tensor, *, share: Fraction = 0.2) -> Tensor:
    """The entropy that a share of the step's trained tokens reaches: their (1 - share) quantile, interpolated."""
    kept_N = entropy_T.detach()[loss_mask_T]
    if kept_N.numel() == 0:
        return entropy_T.new_zeros(())
    # torch.quantile stops at 16 million entries, and a step may hold more.
    sorted_N, index = kept_N.sort().values, (1 - share) * (kept_N.numel() - 1)
    low = int(index)
    high = min(low + 1, kept_N.numel() - 1)
    return sorted_N[low] + (index - low) * (sorted_N[high] - sorted_N[low])


@step_statistic(entropy_floor=entropy_floor)
def top_entropy(entropy_T: Tensor, loss_mask_T: Tensor, entropy_floor: Tensor) -> Tensor:
    """Only the tokens of highest entropy: a share of the step's tokens (arXiv 2506.01939).

    Entropies (.1, .5, .3, .9, .7), share .4: the floor is .58, and .9 and .7 are trained.
    """
    return masked.kept(entropy_T.detach(), loss_mask_T) >= entropy_floor


@checked
def near_policy(
    logprobs_T: Tensor,
    sampler_logprobs_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    *,
    max_drift: NonNegative = 0.5,
) -> Tensor:
    """Drop a negative sample the policy has already left: mean (log roll - log pi) above max_drift (DeepSeek-V3.2).

    A token whose sampler gave no log-prob counts as no drift.
    """
    known_T = loss_mask_T & ~torch.isnan(sampler_logprobs_T)
    drift_T = masked.kept(sampler_logprobs_T, known_T) - masked.kept(logprobs_T.detach(), known_T)
    drift_B = segments.mean(drift_T, loss_mask_T)
    return (masked.kept(advantages_T, loss_mask_T) >= 0) | (
        segments.broadcast(drift_B) <= max_drift
    )


@checked
def teacher_agreement(
    advantages_T: Tensor,
    teacher_logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    *,
    mix: Fraction = 0.5,
    radius: Annotated[Fraction, RARE] = 0.2,
    negative_only: Annotated[bool, RARE] = False,
) -> Tensor:
    """(1 - mix) + mix * w, w = e^(sign(A) (log teacher - log pi)) clamped to 1 +- radius: RLSD's weight from a teacher.

    Advantage -1, teacher .1 nats above, mix .5, radius .2: w = e^-.1, and the token counts .952419.
    """
    advantages_T = masked.kept(advantages_T.detach(), loss_mask_T)
    gap_T = masked.kept(teacher_logprobs_T.detach(), loss_mask_T) - masked.kept(
        old_logprobs_T.detach(), loss_mask_T
    )
    weight_T = (1 - mix) + mix * torch.exp(advantages_T.sign() * gap_T).clamp(
        1 - radius, 1 + radius
    )
    return torch.where(advantages_T >= 0, 1.0, weight_T) if negative_only else weight_T


def probability(logprobs_T: Tensor, loss_mask_T: Tensor) -> Tensor:
    """pi(token), frozen: supervised fine-tuning whose gradient is that of the probability (DFT, arXiv 2508.05629).

    A token of probability .1 counts a tenth.
    """
    return masked.kept(logprobs_T.detach(), loss_mask_T).exp()


def own_likelihood(
    logprobs_T: Tensor,
    log_collision_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    chosen_P: Tensor,
    rejected_P: Tensor,
) -> Tensor:
    """A pair's weight c_w c_l, c = e^(mean over tokens of log pi - log sum_v pi(v)^2): WPO (arXiv 2406.11827).

    Off-policy pairs count less, as if they were sampled from the policy. `log_collision_T` is log sum_v pi(v)^2 of the
    distribution that a token was drawn from; a token as likely as expected has factor 1.
    """
    kept_T = masked.kept(logprobs_T.detach(), loss_mask_T) - masked.kept(
        log_collision_T.detach(), loss_mask_T
    )
    weight_B = segments.mean(kept_T, loss_mask_T).exp()
    return weight_B[chosen_P] * weight_B[rejected_P]
