"""Sampled KL estimators, per token, for use in the loss. Axes: T flat tokens.

With x = log ref - log pi on tokens sampled from pi, all of these estimate KL(pi || ref), but what their GRADIENT does
in expectation is another matter (checked on a categorical policy in tests/losses/test_kl.py):

  name     value          gradient in the loss
  k1       -x             0 in expectation: pure noise; refused as a loss by `plan`
  k2       x^2 / 2        exactly grad KL(pi || ref)
  k3       e^x - x - 1    grad KL(ref || pi), the other direction; GRPO's choice
  rho_k3   ratio * k3     exactly grad KL(pi || ref), off-policy too
  rho_k1   ratio * k1     exactly grad KL(pi || ref), noisier
  k3_straight_through     value of k3, gradient of k2
  k1_straight_through     value of k1, gradient of k2
  weighted_k3             importance weight * k3: the value on samples of another sampler than pi
  to_old   ratio - 1 - log ratio, samples from old: KL(old || pi), the term of PPO-penalty

There is no clamp on the value: capping k3 at 10 zeroes its gradient exactly where the policy has drifted most. Peers do
it, and a custom row may (`cap`, 0 for none). `guard` bounds x from above only, so that exp cannot overflow.

Worked example: log pi [-1, -2, -.5, -.1], log ref [-1.2, -1.5, -.5, -.3]:
k1 [.2, -.5, 0, .2], k2 [.02, .125, 0, .02], k3 [.018731, .148721, 0, .018731].
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from ascent.losses.ratios import GUARD, Guard, differences
from ascent.maths import masked
from ascent.parameter_ranges import RARE, NonNegative, checked

Cap = Annotated[NonNegative, RARE]


def k1(logprobs_T: Tensor, ref_logprobs_T: Tensor, loss_mask_T: Tensor) -> Tensor:
    """log pi - log ref: unbiased in value, useless as a loss; belongs in the reward."""
    return differences(logprobs_T, ref_logprobs_T, loss_mask_T)


def k2(logprobs_T: Tensor, ref_logprobs_T: Tensor, loss_mask_T: Tensor) -> Tensor:
    """Half the squared log-ratio: slightly biased in value, exact in gradient on-policy."""
    return 0.5 * differences(logprobs_T, ref_logprobs_T, loss_mask_T) ** 2


@checked
def k3(
    logprobs_T: Tensor,
    ref_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    *,
    guard: Guard = GUARD,
    cap: Cap = 0.0,
) -> Tensor:
    """e^x - x - 1: unbiased and never negative; its gradient is that of the forward KL(ref || pi)."""
    value_T = _bregman(-differences(logprobs_T, ref_logprobs_T, loss_mask_T), guard)
    return value_T.clamp(max=cap) if cap else value_T


@checked
def weighted_k3(
    logprobs_T: Tensor,
    ref_logprobs_T: Tensor,
    correction_T: Tensor,
    loss_mask_T: Tensor,
    *,
    guard: Guard = GUARD,
    cap: Cap = 0.0,
) -> Tensor:
    """k3 times the weight of the rollout correction, as in the policy term.

    ms-swift's KL under rollout importance sampling. A token that the correction rejects has no KL either.
    """
    weight_T = masked.kept(correction_T.detach(), loss_mask_T)
    return weight_T * k3(logprobs_T, ref_logprobs_T, loss_mask_T, guard=guard, cap=cap)


@checked
def rho_k3(
    logprobs_T: Tensor,
    ref_logprobs_T: Tensor,
    log_ratio_T: Tensor,
    loss_mask_T: Tensor,
    *,
    guard: Guard = GUARD,
) -> Tensor:
    """ratio * k3, gradient through both: unbiased in value and gradient even on old samples."""
    return masked.kept(log_ratio_T, loss_mask_T).exp() * k3(
        logprobs_T, ref_logprobs_T, loss_mask_T, guard=guard
    )


def rho_k1(
    logprobs_T: Tensor, ref_logprobs_T: Tensor, log_ratio_T: Tensor, loss_mask_T: Tensor
) -> Tensor:
    """ratio * k1, gradient through both: unbiased, may be negative, noisier than rho_k3."""
    return masked.kept(log_ratio_T, loss_mask_T).exp() * k1(logprobs_T, ref_logprobs_T, loss_mask_T)


@checked
def k3_straight_through(
    logprobs_T: Tensor,
    ref_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    *,
    guard: Guard = GUARD,
    cap: Cap = 0.0,
) -> Tensor:
    """The value of k3 with the gradient of k2."""
    slope_T = k2(logprobs_T, ref_logprobs_T, loss_mask_T)
    return (
        k3(logprobs_T, ref_logprobs_T, loss_mask_T, guard=guard, cap=cap).detach()
        + slope_T
        - slope_T.detach()
    )


def k1_straight_through(logprobs_T: Tensor, ref_logprobs_T: Tensor, loss_mask_T: Tensor) -> Tensor:
    """The value of k1 with the gradient of k2: unbiased in value, exact in gradient on-policy; may be negative."""
    slope_T = k2(logprobs_T, ref_logprobs_T, loss_mask_T)
    return k1(logprobs_T, ref_logprobs_T, loss_mask_T).detach() + slope_T - slope_T.detach()


@checked
def to_old(
    logprobs_T: Tensor, old_logprobs_T: Tensor, loss_mask_T: Tensor, *, guard: Guard = GUARD
) -> Tensor:
    """KL(old || pi) from old samples: ratio - 1 - log ratio; the trust region of PPO-penalty and of the early stop."""
    return _bregman(differences(logprobs_T, old_logprobs_T, loss_mask_T), guard)


def _bregman(x_T: Tensor, guard: float) -> Tensor:
    # expm1 keeps the digits that e^x - 1 loses near 0, where k3 is about x^2 / 2.
    return x_T.clamp(max=guard).expm1() - x_T.clamp(max=guard)
