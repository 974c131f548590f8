"""verl 0.9.1 primitives: masked statistics, KL estimators and controllers, aggregation, value and entropy losses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ascent.advantages import shape
from ascent.losses import controllers, entropy, values
from ascent.maths import divergence, masked
from ascent.maths.logprobs import token_logprobs
from tests.golden.cases import COUNT_PLUS_1E8, Case, Ours
from tests.golden.packed import Rows, gradient, mean_of, reduced
from tests.golden.verl_losses import estimator, reduction, spread_out


def masked_stats(case: Case) -> Ours:
    values_BL, mask_BL = case.tensor("values"), case.flags("mask")
    rows = Rows(mask_BL)
    x_T, keep_T = rows.pack(values_BL), rows.trained_T
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
    loose = {name: COUNT_PLUS_1E8 for name in found if name != "masked_sum"}
    return Ours(found, where=whitened, tolerances=loose)


def kl_penalty(case: Case) -> Ours:
    logprobs, reference = case.leaf("logprob"), case.tensor("ref_logprob")
    kl = estimator(case.params["kl_penalty"])(logprobs, reference, torch.ones_like(reference, dtype=torch.bool))
    return Ours({"kl": kl, "mean_kl": kl.mean(), "grad_sum_wrt_logprob": gradient(kl.sum(), logprobs)})


def kl_controller(case: Case) -> Ours:
    """The unit of the KL is the caller's business here, so either of our two names will do."""
    coefficient, steps = case.params["kl_coef"], zip(case.inputs["current_kl"], case.inputs["n_steps"], strict=True)
    target, horizon = case.params["target_kl"], case.params["horizon"]
    found = []
    for measured, sequences in steps:
        if case.params["type"] == "fixed":
            coefficient = controllers.fixed(coefficient)
        else:
            coefficient = controllers.ziegler_token(
                coefficient, measured, sequences, target_per_token=target, horizon=horizon
            )
        found.append(coefficient)
    return Ours({"value_after_each_update": found})


def agg_loss(case: Case) -> Ours:
    rows, losses = Rows(case.flags("loss_mask")), case.leaf("loss_mat")
    loss = _aggregated(case, rows, rows.pack(losses))
    return Ours({"loss": loss, "grad_loss_mat": gradient(loss, losses)})


def value_loss(case: Case) -> Ours:
    rows, predicted = Rows(case.flags("response_mask")), case.leaf("vpreds")
    old_T, returns_T, values_T = (rows.pack(x) for x in (case.tensor("values"), case.tensor("returns"), predicted))
    loss_T = values.clipped(values_T, old_T, returns_T, rows.trained_T, radius=case.params["cliprange_value"])
    held_T = loss_T > values.mse(values_T, returns_T, rows.trained_T)
    loss = _aggregated(case, rows, loss_T)
    return Ours(
        {
            "vf_loss": loss,
            "vf_clipfrac": masked.mean(held_T.double(), rows.trained_T),
            "grad_vpreds": gradient(loss, predicted),
        },
        tolerances={"vf_clipfrac": COUNT_PLUS_1E8},
    )


def entropy_loss(case: Case) -> Ours:
    rows, logits = Rows(case.flags("response_mask")), case.leaf("logits")
    entropies = divergence.entropy(logits)
    loss = -_aggregated(case, rows, entropy.bonus(rows.pack(entropies), rows.trained_T))
    return Ours({"entropy_loss": loss, "token_entropy": entropies, "grad_logits": gradient(loss, logits)})


def logprobs_from_logits(case: Case) -> Ours:
    logits, labels = case.tensor("logits"), case.tensor("labels").long()
    return Ours(
        {"logprobs": token_logprobs(logits, labels), "entropy": divergence.entropy(logits)},
        not_ours={"sum_pi_squared": "an input of the optimal token baseline, which is not built yet"},
    )


def reward_minus_kl(case: Case) -> Ours:
    old, reference = case.tensor("old_log_prob"), case.tensor("ref_log_prob")
    every = torch.ones_like(old, dtype=torch.bool)
    term = shape.kl_penalty(old, reference, every, beta=case.params["kl_ratio"])
    return Ours({"token_level_rewards": case.tensor("token_level_scores") + term})


def apply_kl_penalty(case: Case) -> Ours:
    """KL in the reward, its measured mean over all rows, and what the controller makes of it."""
    rows, coefficient = Rows(case.flags("response_mask")), case.params["init_kl_coef"]
    old_T, reference_T = (rows.pack(case.tensor(name)) for name in ("old_log_probs", "ref_log_prob"))
    kind = case.params["kl_penalty"]
    kl_T = estimator(kind)(old_T, reference_T, rows.trained_T)
    if kind in ("kl", "k1"):
        term_T = shape.kl_penalty(old_T, reference_T, rows.trained_T, beta=coefficient)
    else:
        term_T = -coefficient * masked.kept(kl_T, rows.trained_T)
    tokens_B = rows.segments.sum(rows.trained_T).to(kl_T.dtype)
    measured = (rows.segments.mean(kl_T, rows.trained_T) * tokens_B / (tokens_B + 1e-8)).mean()
    after = controllers.ziegler_token(
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


def _aggregated(case: Case, rows: Rows, loss_T: Tensor) -> Tensor:
    how = reduction(case, rows.width)
    term = spread_out(loss_T, rows, how.mode)
    if how.count is None and how.ranks == 1:
        return mean_of(term)
    return reduced({"loss": term}, count=how.count, ranks=how.ranks)


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
