"""verl 0.9.1 primitives: masked statistics, KL estimators and controllers, aggregation, value and entropy losses."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ascent.advantages import reward_shaping
from ascent.losses import entropy, kl_controllers, values
from ascent.maths import divergence, masked
from ascent.maths.logprobs import token_logprobs
from tests.golden import conventions
from tests.golden.cases import METRIC, Case, Ours
from tests.golden.conventions import Convention
from tests.golden.packed import Rows, gradient
from tests.golden.verl_losses import aggregated, beside_policy, estimator, reduction


def masked_stats(case: Case) -> Ours:
    values_BL, mask_BL = case.tensor("values"), case.flags("mask")
    rows = Rows(mask_BL)
    x_T, keep_T = rows.pack(values_BL), rows.loss_mask_T
    found = {
        "masked_sum": masked.total(x_T, keep_T),
        "masked_mean": masked.mean(x_T, keep_T),
        "masked_mean_axis_last": rows.segments.mean(x_T, keep_T),
        "masked_var": masked.variance(x_T, keep_T),
        "masked_var_biased": masked.variance(x_T, keep_T, ddof=0),
        "masked_whiten": rows.unpack(masked.whiten(x_T, keep_T)),
        "masked_whiten_keep_mean": rows.unpack(masked.whiten(x_T, keep_T, shift_mean=False)),
    }
    whitened = {name: mask_BL for name in ("masked_whiten", "masked_whiten_keep_mean")}
    loose = {name: conventions.room_for_1e8(case) for name in found if name != "masked_sum"}
    return Ours(found, where=whitened, tolerances=loose)


def kl_penalty(case: Case) -> Ours:
    logprobs, reference = case.leaf("logprob"), case.tensor("ref_logprob")
    known = {
        "logprobs_T": logprobs,
        "ref_logprobs_T": reference,
        "loss_mask_T": torch.ones_like(reference).bool(),
    }
    kl = estimator(case, case.params["kl_penalty"])(known)
    return Ours(
        {"kl": kl, "mean_kl": kl.mean(), "grad_sum_wrt_logprob": gradient(kl.sum(), logprobs)}
    )


def kl_controller(case: Case) -> Ours:
    """The unit of the KL is the caller's business here, so either of our two names will do."""
    coefficient, steps = (
        case.params["kl_coef"],
        zip(case.inputs["current_kl"], case.inputs["n_steps"], strict=True),
    )
    target, horizon = case.params["target_kl"], case.params["horizon"]
    found = []
    for measured, sequences in steps:
        if case.params["type"] == "fixed":
            coefficient = kl_controllers.fixed(coefficient)
        else:
            coefficient = kl_controllers.ziegler_token(
                coefficient, measured, sequences, target_per_token=target, horizon=horizon
            )
        found.append(coefficient)
    return Ours({"value_after_each_update": found})


def agg_loss(case: Case) -> Ours:
    rows, losses = Rows(case.flags("loss_mask")), case.leaf("loss_mat")
    loss = aggregated(rows.pack(losses), rows, reduction(case, rows.width))
    return Ours({"loss": loss, "grad_loss_mat": gradient(loss, losses)})


def value_loss(case: Case) -> Ours:
    rows, predicted = Rows(case.flags("response_mask")), case.leaf("vpreds")
    old_logprobs_T, returns_T, values_T = (
        rows.pack(x) for x in (case.tensor("values"), case.tensor("returns"), predicted)
    )
    loss_T = values.clipped(
        values_T, old_logprobs_T, returns_T, rows.loss_mask_T, radius=case.params["cliprange_value"]
    )
    held_T = loss_T > values.mse(values_T, returns_T, rows.loss_mask_T)
    loss = aggregated(loss_T, rows, beside_policy(case, rows.width))
    return Ours(
        {
            "vf_loss": loss,
            "vf_clipfrac": masked.mean(held_T.double(), rows.loss_mask_T),
            "grad_vpreds": gradient(loss, predicted),
        },
        tolerances={"vf_clipfrac": METRIC},
    )


def entropy_loss(case: Case) -> Ours:
    rows, logits = Rows(case.flags("response_mask")), case.leaf("logits")
    entropies = divergence.entropy(logits)
    bonus_T = entropy.bonus(rows.pack(entropies), rows.loss_mask_T)
    loss = -aggregated(bonus_T, rows, beside_policy(case, rows.width))
    return Ours(
        {"entropy_loss": loss, "token_entropy": entropies, "grad_logits": gradient(loss, logits)}
    )


def logprobs_from_logits(case: Case) -> Ours:
    logits, labels = case.tensor("logits"), case.tensor("labels").long()
    found = {"logprobs": token_logprobs(logits, labels), "entropy": divergence.entropy(logits)}
    return Ours(found | {"sum_pi_squared": divergence.log_collision(logits).exp()})


def reward_minus_kl(case: Case) -> Ours:
    old, reference = case.tensor("old_log_prob"), case.tensor("ref_log_prob")
    every = torch.ones_like(old, dtype=torch.bool)
    term = reward_shaping.kl_penalty(old, reference, every, beta=case.params["kl_ratio"])
    return Ours({"token_level_rewards": case.tensor("token_level_scores") + term})


def apply_kl_penalty(case: Case) -> Ours:
    """KL in the reward, its measured mean over all rows, and what the controller makes of it."""
    rows, coefficient = Rows(case.flags("response_mask")), case.params["init_kl_coef"]
    old_logprobs_T, ref_logprobs_T = (
        rows.pack(case.tensor(name)) for name in ("old_log_probs", "ref_log_prob")
    )
    kind = case.params["kl_penalty"]
    kl_T = reward_shaping.kl_penalty(
        old_logprobs_T, ref_logprobs_T, rows.loss_mask_T, beta=1.0
    ).neg()
    if kind not in ("kl", "k1") and case.follows(Convention.KL_IN_REWARD):
        known = {
            "logprobs_T": old_logprobs_T,
            "ref_logprobs_T": ref_logprobs_T,
            "loss_mask_T": rows.loss_mask_T,
        }
        kl_T = masked.kept(estimator(case, kind)(known), rows.loss_mask_T)
    term_T, measured = -coefficient * kl_T, masked.mean(kl_T, rows.loss_mask_T)
    if case.follows(Convention.ROWS_TO_CONTROLLER):
        tokens_B = rows.segments.sum(rows.loss_mask_T).to(kl_T.dtype)
        measured = (
            rows.segments.mean(kl_T, rows.loss_mask_T) * tokens_B / (tokens_B + 1e-8)
        ).mean()
    after = kl_controllers.ziegler_token(
        coefficient,
        float(measured),
        rows.count,
        target_per_token=case.params["target_kl"],
        horizon=case.params["horizon"],
    )
    return Ours(
        {
            "token_level_rewards": case.tensor("token_level_scores") + rows.unpack(term_T),
            "current_kl": measured,
            "coef_used": coefficient,
            "coef_after": after,
        }
    )


ADAPTERS: dict[str, Callable[[Case], Ours]] = {
    "utils.torch_functional.masked_mean/masked_var/masked_whiten": masked_stats,
    "core_algos.kl_penalty": kl_penalty,
    "core_algos.get_kl_controller": kl_controller,
    "core_algos.agg_loss": agg_loss,
    "core_algos.compute_value_loss": value_loss,
    "core_algos.compute_entropy_loss": entropy_loss,
    "utils.torch_functional.logprobs_from_logits_naive": logprobs_from_logits,
    "core_algos.compute_rewards": reward_minus_kl,
    "trainer.ppo.ray_trainer.apply_kl_penalty": apply_kl_penalty,
}
