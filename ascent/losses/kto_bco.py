"""Preference losses on unpaired responses, each labeled desirable or undesirable.

Axes: B sequences. u = log pi - log ref of a whole response. With beta .1, u = 1 desirable and u = -2 undesirable:
kto (reference point .3) .482507 and .442752; apo_zero_unpaired .475021 and .450166.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ascent.cells import step_statistic
from ascent.losses.loss import ItemLosses
from ascent.maths import masked
from ascent.maths.metrics import Accumulator, mean_of
from ascent.parameter_ranges import NonNegative, Positive, checked


@checked
def kto(
    logprobs_B: Tensor,
    ref_logprobs_B: Tensor,
    lengths_B: Tensor,
    desirable_B: Tensor,
    mismatched_score: Tensor,
    *,
    beta: Positive = 0.1,
    desirable_weight: NonNegative = 1.0,
    undesirable_weight: NonNegative = 1.0,
) -> ItemLosses:
    """Unpaired: weight * (1 - sigmoid(+-beta (u - z))) for desirable and undesirable rows (arXiv 2402.01306).

    z = max(0, mean u of completions paired with other prompts) is a step statistic: `mismatched_score` is that mean
    over the whole optimizer step, computed before any micro-batch is trained.
    """
    score_B = logprobs_B - ref_logprobs_B.detach()
    point = torch.as_tensor(mismatched_score).detach().clamp(min=0)
    sign_B = torch.where(desirable_B, 1.0, -1.0).to(score_B.dtype)
    weight_B = torch.full_like(score_B, undesirable_weight).masked_fill(
        desirable_B, desirable_weight
    )
    losses_B = weight_B * (1 - torch.sigmoid(sign_B * beta * (score_B - point)))
    return _unpaired(losses_B, beta * score_B, lengths_B, desirable_B)


@checked
def apo_zero_unpaired(
    logprobs_B: Tensor,
    ref_logprobs_B: Tensor,
    lengths_B: Tensor,
    desirable_B: Tensor,
    *,
    beta: Positive = 0.1,
    desirable_weight: NonNegative = 1.0,
    undesirable_weight: NonNegative = 1.0,
) -> ItemLosses:
    """KTO whose reference point is 0, so that no mismatched completions are needed (APO, arXiv 2408.06266)."""
    point = torch.zeros((), dtype=logprobs_B.dtype, device=logprobs_B.device)
    return kto(
        logprobs_B,
        ref_logprobs_B,
        lengths_B,
        desirable_B,
        point,
        beta=beta,
        desirable_weight=desirable_weight,
        undesirable_weight=undesirable_weight,
    )


@checked
def rewards_so_far(
    logprobs_B: Tensor,
    ref_logprobs_B: Tensor,
    lengths_B: Tensor,
    reward_memory: Tensor | None = None,
    *,
    beta: Positive = 0.1,
) -> Tensor:
    """(mean, count) of every implicit reward beta u seen so far, this step's included: BCO's shift.

    Rewards .1 and .3 give (.2, 2); after .5, .1 and 0 it is (.2, 5).
    """
    counted_B = lengths_B > 0
    total, count = (
        masked.total(beta * (logprobs_B - ref_logprobs_B), counted_B),
        counted_B.sum().to(logprobs_B.dtype),
    )
    if reward_memory is not None:
        mean, before = reward_memory.to(logprobs_B)
        total, count = total + mean * before, count + before
    return torch.stack([total / count.clamp(min=1), count]).detach()


@step_statistic(reward_memory=rewards_so_far)
@checked
def bco(
    logprobs_B: Tensor,
    ref_logprobs_B: Tensor,
    lengths_B: Tensor,
    desirable_B: Tensor,
    reward_memory: Tensor,
    *,
    beta: Positive = 0.1,
) -> ItemLosses:
    """-log sigmoid(+-(beta u - shift)): a binary classifier whose logit is the reward, centered on all rewards so far.

    BCO (arXiv 2404.04656). The shift is one number per optimizer step, the running mean of `rewards_so_far`.
    """
    reward_B = beta * (logprobs_B - ref_logprobs_B.detach())
    sign_B = torch.where(desirable_B, 1.0, -1.0).to(reward_B.dtype)
    losses_B = -logsigmoid(sign_B * (reward_B - reward_memory[0].detach()))
    return _unpaired(losses_B, reward_B, lengths_B, desirable_B)


def _unpaired(
    losses_B: Tensor, reward_B: Tensor, lengths_B: Tensor, desirable_B: Tensor
) -> ItemLosses:
    """The losses with their metrics; an empty response is not counted."""
    counted_B = lengths_B > 0
    metrics: dict[str, Accumulator] = {
        "preference/reward_desirable": mean_of(reward_B, counted_B & desirable_B),
        "preference/reward_undesirable": mean_of(reward_B, counted_B & ~desirable_B),
    }
    return ItemLosses(losses_B, counted_B, metrics)
