"""TRL 1.12.0 PPO: one whole update, from log-probs, values and scores to the loss.

TRL's conventions: the score sits one position after the last response token where there is room, and the critic's value
there is trained and bootstrapped through: GAE and the value loss see a response one token longer than the policy does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ascent.advantages import normalize, returns, reward_shaping
from ascent.cells import cell
from ascent.losses import aggregation, kl, policy_losses, ratios, rollout_correction, values
from ascent.losses.loss import Loss
from ascent.losses.objective import policy_terms
from ascent.maths import masked
from tests.golden.cases import METRIC, Case, Ours
from tests.golden.conventions import Convention
from tests.golden.packed import NO_GUARD, Rows, gradient, mean_of, reduced


def update(case: Case) -> Ours:
    last_B, width = case.tensor("sequence_lengths"), case.tensor("values").shape[1]
    places = torch.arange(width)
    rows, beyond = Rows(places <= last_B[:, None]), Rows(places <= last_B[:, None] + 1)
    longer = beyond if case.follows(Convention.SCORE_LATER) else rows
    rewards_T = _rewards(case, rows, longer)
    found = returns.gae(
        rewards_T,
        longer.pack(case.tensor("values")),
        longer.loss_mask_T,
        longer.segments,
        gamma=case.params["gamma"],
        lam=case.params["lam"],
    )
    advantages_T = normalize.whiten_token(
        rows.pack(longer.unpack(found.advantages_T)), rows.loss_mask_T
    )
    returns_BL = longer.unpack(found.returns_T)

    logprobs, predicted = case.leaf("new_logprobs"), case.leaf("vpred")
    policy = policy_terms(
        rows.known(logprobs_T=logprobs, old_logprobs_T=case.tensor("logprobs"))
        | {"advantages_T": advantages_T},
        rollout_correction=cell(rollout_correction.none),
        ratio=cell(ratios.token, guard=NO_GUARD),
        policy_loss=cell(
            policy_losses.clip, low=case.params["cliprange"], high=case.params["cliprange"]
        ),
        aggregation=cell(aggregation.token_mean),
    )
    value_T, plain_T = _value_losses(case, longer, predicted, returns_BL)
    pg_loss = reduced(policy)
    vf_loss = mean_of(
        Loss(
            masked.total(value_T, longer.loss_mask_T),
            longer.loss_mask_T.sum().to(value_T.dtype),
            {},
        )
    )
    loss = pg_loss + case.params["vf_coef"] * vf_loss
    return Ours(
        {
            "rewards": longer.unpack(rewards_T),
            "advantages": rows.unpack(advantages_T),
            "returns": returns_BL,
            "padding_mask": ~rows.mask_BL,
            "padding_mask_p1": ~beyond.mask_BL,
            "pg_loss": pg_loss,
            "vf_loss": vf_loss,
            "vf_clipfrac": masked.mean((value_T > plain_T).double(), longer.loss_mask_T),
            "loss": loss,
            "grad_new_logprobs": gradient(loss, logprobs),
            "grad_vpred": gradient(loss, predicted),
        },
        tolerances={"vf_clipfrac": METRIC},
    )


def _rewards(case: Case, rows: Rows, longer: Rows) -> Tensor:
    """KL on the response's tokens, the score on the last place of the longer row; whitened unshifted if asked."""
    old_logprobs_T, ref_logprobs_T = (
        longer.pack(case.tensor(name)) for name in ("logprobs", "ref_logprobs")
    )
    response_T, beta = longer.pack(rows.mask_BL), case.params["kl_coef"]
    if case.params["kl_estimator"] == "k1" or not case.follows(Convention.KL_IN_REWARD):
        penalty_T = reward_shaping.kl_penalty(old_logprobs_T, ref_logprobs_T, response_T, beta=beta)
    else:
        case.expects(kl_estimator="k3")
        penalty_T = -beta * kl.k3(old_logprobs_T, ref_logprobs_T, response_T, guard=NO_GUARD)
    rewards_T = penalty_T + reward_shaping.on_last_token(
        case.tensor("scores"), longer.loss_mask_T, longer.segments
    )
    if case.params["whiten_rewards"]:
        rewards_T = reward_shaping.whiten_rewards(rewards_T, longer.loss_mask_T)
    return rewards_T


def _value_losses(
    case: Case, longer: Rows, predicted: Tensor, returns_BL: Tensor
) -> tuple[Tensor, Tensor]:
    values_T, old_logprobs_T, returns_T = (
        longer.pack(x) for x in (predicted, case.tensor("values"), returns_BL)
    )
    radius = case.params["cliprange_value"]
    clipped_T = values.clipped(
        values_T, old_logprobs_T, returns_T, longer.loss_mask_T, radius=radius
    )
    return clipped_T, values.mse(values_T, returns_T, longer.loss_mask_T)


def masked_stats(case: Case) -> Ours:
    values_BL, mask_BL = case.tensor("values"), case.flags("mask")
    whitened = {"masked_whiten": True, "masked_whiten_keep_mean": False}
    found = {
        "masked_mean": masked.mean(values_BL, mask_BL),
        "masked_var": masked.variance(values_BL, mask_BL),
        **{
            name: masked.whiten(values_BL, mask_BL, shift_mean=shift)
            for name, shift in whitened.items()
        },
    }
    return Ours(found, where={name: mask_BL for name in whitened})


ADAPTERS: dict[str, Callable[[Case], Ours]] = {
    "trl.experimental.ppo.ppo_trainer.PPOTrainer.train": update,
    "trl.experimental.ppo.ppo_trainer.masked_mean/masked_var/masked_whiten": masked_stats,
}
