"""OpenRLHF 0.11.0: reward shaping, advantages and returns, and its primitives.

Its conventions: length penalties, then the group baseline, then clipping, then KL per token; observation tokens are
steps like any other, with reward and value 0, so discounts run through them; whitening uses the population variance, in
float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ascent.advantages import group_baselines, normalize, returns, reward_shaping
from ascent.cells import cell
from ascent.losses import kl
from ascent.losses.aggregation import token_mean
from ascent.maths import masked
from ascent.maths.groups import Groups
from tests.golden import conventions
from tests.golden.cases import Case, Ours
from tests.golden.conventions import Convention
from tests.golden.packed import Rows, gradient, mean_of
from tests.golden.trl_advantages import consecutive
from tests.golden.verl_losses import LARGEST_KL, spread_out
from tests.golden.verl_primitives import kl_controller

NO_EPS = 1e-300  # the peer bounds the variance from below instead of adding to it
GROUP_EPS = 1e-9
NO_BASELINE = ("reinforce", "gae")


def advantages(case: Case) -> Ours:
    kind, rows = case.params["estimator"], Rows(case.flags("action_mask"))
    shaped_B = judged_B = _shaped(case)
    groups = consecutive(rows.count, case.params["n_samples_per_prompt"])
    kl_T, beta = rows.pack(case.tensor("kl")), max(case.params["kl_coef"], 0.0)
    penalty_T = reward_shaping.kl_penalty(kl_T, torch.zeros_like(kl_T), rows.loss_mask_T, beta=beta)
    if kind in NO_BASELINE or case.follows(Convention.AFTER_BASELINE):
        credit_B = _clipped(case, _against_group(kind, shaped_B, groups))
    else:
        judged_B = _clipped(case, shaped_B) + rows.segments.sum(penalty_T)
        credit_B, penalty_T = _against_group(kind, judged_B, groups), torch.zeros_like(penalty_T)
    rewards_T = reward_shaping.on_last_token(credit_B, rows.loss_mask_T, rows.segments) + penalty_T
    every_T = (
        torch.ones_like(rows.loss_mask_T)
        if case.follows(Convention.OBSERVATIONS)
        else rows.loss_mask_T
    )
    gamma = case.params["gamma"]
    if kind == "gae":
        values_T = masked.kept(rows.pack(case.tensor("values")), rows.loss_mask_T)
        found = returns.gae(
            rewards_T, values_T, every_T, rows.segments, gamma=gamma, lam=case.params["lambd"]
        )
        advantages_T, returns_T = found.advantages_T, found.returns_T
    else:
        case.expects(lambd=1.0)
        gamma = (
            gamma if kind == "reinforce" else 1.0
        )  # forced to 1 for everything with a group baseline
        advantages_T = returns_T = returns.reward_to_go(
            rewards_T, every_T, rows.segments, gamma=gamma
        ).advantages_T
    if kind in ("gae", "reinforce", "reinforce_baseline"):
        advantages_T = _whitened(case, advantages_T, rows)
    case.peer_ignores("no_std_norm")
    answer = {
        "advantages": rows.unpack(advantages_T),
        "returns": rows.unpack(returns_T),
        "shaped_rewards": shaped_B,
    }
    tolerances = {}
    if kind == "group_norm":
        room = conventions.room_for_flat_groups(case, credit_B, judged_B, groups, GROUP_EPS)
        tolerances = {"advantages": room, "returns": room}
    return Ours(answer, tolerances=tolerances)


def _shaped(case: Case) -> Tensor:
    """The overlong penalty first, then the rule for truncated completions on what it left."""
    rewards_B, lengths_B = case.tensor("rewards"), case.tensor("response_length")
    buffer, coefficient = (
        case.params["overlong_buffer_len"],
        case.params["stop_properly_penalty_coef"],
    )
    longest, truncated_B = case.params["max_new_tokens"], case.flags("truncated")
    if buffer is not None:
        rewards_B = reward_shaping.soft_overlong(
            rewards_B, lengths_B, max_length=longest, cache=int(buffer)
        )
    if coefficient is not None and coefficient < 0:
        rewards_B = reward_shaping.eos_replace(rewards_B, truncated_B, score=coefficient)
    elif coefficient is not None:
        rewards_B = reward_shaping.eos_scale(rewards_B, truncated_B, factor=coefficient)
    return rewards_B


def _clipped(case: Case, rewards_B: Tensor) -> Tensor:
    if case.params["reward_clip_range"] is None:
        return rewards_B
    low, high = case.params["reward_clip_range"]
    return reward_shaping.clip(rewards_B, low=low, high=high)


def _against_group(kind: str, rewards_B: Tensor, groups: Groups) -> Tensor:
    if kind in NO_BASELINE:
        return rewards_B
    if kind == "rloo":
        return group_baselines.leave_one_out(rewards_B, groups).advantages_B
    centered_B = group_baselines.group_mean_baseline(rewards_B, groups).advantages_B
    if kind in ("reinforce_baseline", "dr_grpo"):
        return centered_B
    if kind == "group_norm":
        return normalize.group_std(centered_B, rewards_B, groups, eps=GROUP_EPS)
    raise KeyError(f"estimator {kind!r} is not one this adapter knows")


def _whitened(case: Case, advantages_T: Tensor, rows: Rows) -> Tensor:
    if case.params["no_std_norm"]:
        if not case.follows(Convention.CENTRED_ONLY):
            return advantages_T
        return masked.kept(
            advantages_T - masked.mean(advantages_T, rows.loss_mask_T), rows.loss_mask_T
        )
    return normalize.whiten_token(advantages_T, rows.loss_mask_T, ddof=0, eps=NO_EPS)


def compute_reward(case: Case) -> Ours:
    """KL on every position, padding too; a row without a counted token gets its reward on the last column."""
    rewards_B, mask_BL = _clipped(case, case.tensor("r")), case.flags("action_mask")
    every_BL, beta = torch.ones_like(mask_BL), max(case.params["kl_coef"], 0.0)
    mask_BL[~mask_BL.any(1), -1] = True
    rows, kl_BL = Rows(mask_BL), case.tensor("kl")
    placed_BL = rows.unpack(
        reward_shaping.on_last_token(rewards_B, rows.loss_mask_T, rows.segments)
    )
    return Ours(
        {
            "reward": placed_BL
            + reward_shaping.kl_penalty(kl_BL, torch.zeros_like(kl_BL), every_BL, beta=beta)
        }
    )


def approx_kl(case: Case) -> Ours:
    """Float32, and every estimator held within +-10."""
    logprobs, reference = case.leaf("log_probs"), case.tensor("log_probs_base")
    known = {
        "logprobs_T": logprobs,
        "ref_logprobs_T": reference,
        "loss_mask_T": torch.ones_like(reference).bool(),
    }
    kind = case.params["kl_estimator"]
    estimators = {"k1": cell(kl.k1), "k2": cell(kl.k2), "k3": cell(kl.k3, cap=LARGEST_KL)}
    found = estimators[kind](known)
    if kind != "k3" and case.follows(Convention.CAPPED_KL):
        found = found.clamp(-LARGEST_KL, LARGEST_KL)
    return Ours(
        {
            "kl": found,
            "mean_kl": found.mean(),
            "grad_sum_wrt_log_probs": gradient(found.sum(), logprobs),
        }
    )


def masked_stats(case: Case) -> Ours:
    values_BL, mask_BL = case.tensor("values"), case.flags("mask")
    rows = Rows(mask_BL)
    x_T = rows.pack(values_BL)
    by_row = [
        masked.whiten(x, keep, ddof=0, eps=NO_EPS)
        for x, keep in zip(values_BL, mask_BL, strict=True)
    ]
    return Ours(
        {
            "masked_mean": masked.mean(x_T, rows.loss_mask_T),
            "masked_mean_dim_last": rows.segments.mean(x_T, rows.loss_mask_T),
            "masked_normalize_dim1": torch.stack(by_row),
            "aggregate_token": mean_of(spread_out(x_T, rows, cell(token_mean))),
            "aggregate_sample": mean_of(spread_out(x_T, rows, conventions.mean_in_rows(case))),
        }
    )


ADAPTERS: dict[str, Callable[[Case], Ours]] = {
    "openrlhf.trainer.ppo_utils.experience_maker.RemoteExperienceMaker.compute_advantages_and_returns": advantages,
    "openrlhf.models.utils.compute_reward": compute_reward,
    "openrlhf.models.utils.compute_approx_kl": approx_kl,
    "openrlhf.trainer.ppo_utils.kl_controller.AdaptiveKLController": kl_controller,
    "openrlhf.models.utils.masked_mean/masked_normalize/aggregate_loss": masked_stats,
}
