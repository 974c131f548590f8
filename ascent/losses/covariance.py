"""Policy losses that restrain the tokens which drain entropy most: high covariance of advantage and log-prob.

Axes: T flat tokens. cov = (A - mean A) (log pi - mean log pi), means over the trained tokens of the whole optimizer
step (arXiv 2505.22617). Which tokens are restrained is a step statistic.

  clip_cov   drops a random share of the tokens whose cov lies in a band; PPO's clip for the rest
  kl_cov     charges |log-ratio| on the share of tokens with the largest cov; no clip

Worked example: A = (1, -1, 0), log pi = (-1, -3, -2): means 0 and -2, cov = (1, 1, 0).
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from ascent.cells import step_statistic
from ascent.losses.policy_losses import PolicyLoss, clip
from ascent.maths import masked
from ascent.maths.splitmix import shift_right, splitmix64
from ascent.parameter_ranges import RARE, Fraction, NonNegative, checked, ordered

ROUNDING = 1e-6  # of a log-prob in float32


def covariances(logprobs_T: Tensor, advantages_T: Tensor, loss_mask_T: Tensor) -> Tensor:
    """(A - mean A) (log pi - mean log pi) of every trained token, 0 elsewhere."""
    logprobs_T, advantages_T = logprobs_T.detach(), advantages_T.detach()
    off_T = (advantages_T - masked.mean(advantages_T, loss_mask_T)) * (
        logprobs_T - masked.mean(logprobs_T, loss_mask_T)
    )
    return masked.kept(off_T, loss_mask_T)


@checked
@ordered("least", "most")
def draining(
    logprobs_T: Tensor,
    log_ratio_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    old_logprobs_T: Tensor,
    noise_T: Tensor | None = None,
    *,
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
    share: Fraction = 2e-4,
    least: Annotated[float, RARE] = 1.0,
    most: Annotated[float, RARE] = 5.0,
) -> Tensor:
    """The tokens clip_cov drops: of its candidates, those with the smallest noise, `share` of the step's tokens.

    Without `noise_T`, a hash of each token's old log-prob and advantage replaces it: as good as random, independent of
    the split into micro-batches, but not of rounding. Many log-probs round to exactly 0; the advantage tells those
    tokens apart by group.
    """
    candidates_T = candidates(
        logprobs_T,
        log_ratio_T,
        advantages_T,
        loss_mask_T,
        low=low,
        high=high,
        least=least,
        most=most,
    )
    wanted = min(_number(loss_mask_T, share), int(candidates_T.sum()))
    chosen_T = torch.zeros_like(loss_mask_T)
    if wanted:
        noise_T = hashed(old_logprobs_T, advantages_T) if noise_T is None else noise_T.double()
        order_T = torch.where(candidates_T, noise_T, float("inf")).argsort(stable=True)
        chosen_T[order_T[:wanted]] = True
    return chosen_T


def candidates(
    logprobs_T: Tensor,
    log_ratio_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    *,
    low: float,
    high: float,
    least: float,
    most: float,
) -> Tensor:
    """Trained tokens that PPO's clip does not clip and whose cov lies strictly between `least` and `most`."""
    clip_masks = clip(log_ratio_T, advantages_T, loss_mask_T, low=low, high=high).clip_masks
    cov_T = covariances(logprobs_T, advantages_T, loss_mask_T)
    clipped_T = clip_masks["policy/clip_frac_high"] | clip_masks["policy/clip_frac_low"]
    return loss_mask_T & ~clipped_T & (cov_T > least) & (cov_T < most)


@step_statistic(draining_T=draining)
@checked
def clip_cov(
    log_ratio_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    draining_T: Tensor,
    *,
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
) -> PolicyLoss:
    """PPO's clip, and no gradient at all for a random few of the tokens with high covariance (arXiv 2505.22617)."""
    inner = clip(log_ratio_T, advantages_T, loss_mask_T, low=low, high=high)
    return PolicyLoss(
        torch.where(draining_T, 0, inner.loss_T),
        {**inner.clip_masks, "policy/clip_frac_covariance": draining_T},
    )


@checked
def most_covariant(
    logprobs_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    noise_T: Tensor | None = None,
    *,
    share: Fraction = 2e-4,
) -> Tensor:
    """The `share` of the step's trained tokens (at least one) with the largest covariance.

    Equal completions of a prompt have equal covariances. Which of them is charged must not depend on rounding, so
    covariances are compared in thousandths of the largest; of equal ones the smallest noise comes first.
    """
    chosen_T = torch.zeros_like(loss_mask_T)
    wanted = min(_number(loss_mask_T, share), int(loss_mask_T.sum()))
    if wanted:
        cov_T = covariances(logprobs_T, advantages_T, loss_mask_T)
        unit = cov_T.abs().max().clamp(min=1e-30) / 1000
        steps_T = (cov_T / unit).round().masked_fill(~loss_mask_T, float("-inf"))
        by_noise_T = (
            torch.arange(len(cov_T), device=cov_T.device)
            if noise_T is None
            else noise_T.argsort(stable=True)
        )
        order_T = by_noise_T[steps_T[by_noise_T].argsort(stable=True, descending=True)]
        chosen_T[order_T[:wanted]] = True
    return chosen_T


@step_statistic(most_covariant_T=most_covariant)
@checked
def kl_cov(
    log_ratio_T: Tensor,
    advantages_T: Tensor,
    loss_mask_T: Tensor,
    most_covariant_T: Tensor,
    *,
    beta: NonNegative = 1.0,
) -> PolicyLoss:
    """-A ratio, plus beta * |log-ratio| on the few tokens with the largest covariance (arXiv 2505.22617).

    A log-ratio that is only rounding, as in the first update of a step, has no sign and so no gradient.
    """
    loss_T = -masked.kept(advantages_T.detach(), loss_mask_T) * log_ratio_T.exp()
    moved_T = log_ratio_T.detach().abs() > ROUNDING
    charged_T = torch.where(most_covariant_T & moved_T, beta * log_ratio_T.abs(), 0)
    return PolicyLoss(loss_T + charged_T, {"policy/clip_frac_covariance": most_covariant_T})


def hashed(*numbers_T: Tensor) -> Tensor:
    """A number in [0, 1) that looks random and depends on nothing but the token's own numbers: a hash of their bits."""
    bits_T = torch.zeros_like(numbers_T[0], dtype=torch.int64)
    for x_T in numbers_T:
        bits_T = splitmix64(
            bits_T ^ (x_T.detach().double() + 0.0).view(torch.int64)
        )  # + 0.0: -0 and 0 are one number
    return shift_right(bits_T, 11).double() / 2**53


def _number(loss_mask_T: Tensor, share: float) -> int:
    return max(1, int(share * int(loss_mask_T.sum())))
