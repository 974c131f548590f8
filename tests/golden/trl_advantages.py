"""TRL 1.16.0 advantages (GRPO, RLOO) and the mismatch weights computed next to them.

TRL's conventions: consecutive `num_generations` rows form a group; NaN means a reward function gave none; eps 1e-4; the
batch std is that of the raw rewards; RLOO clips rewards first and takes the KL of the whole sequence off them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ascent.advantages import filters, group_baselines, normalize, reward_shaping
from ascent.cells import Cell, cell
from ascent.losses import rollout_correction
from ascent.maths import masked
from ascent.maths.groups import Groups
from tests.golden import conventions
from tests.golden.cases import Case, Ours
from tests.golden.conventions import Convention
from tests.golden.packed import Rows

EPS = 1e-4


def grpo(case: Case) -> Ours:
    reward_components_BK, weights = case.tensor("rewards_per_func"), case.params["reward_weights"]
    groups = consecutive(reward_components_BK.shape[0], case.params["num_generations"])
    rewards_B = _weighted(case, reward_components_BK, weights)
    scale = case.params["scale_rewards"]
    if case.params["multi_objective_aggregation"] == "normalize_then_sum":
        words = ",".join(str(weight) for weight in weights)
        credit = group_baselines.decoupled_parts(
            reward_components_BK, groups, part_weights=words, eps=EPS
        )
        room = conventions.room_for_flat_parts(
            case.tolerance, reward_components_BK, weights, groups, EPS
        )
        judged_B = group_baselines.scored(rewards_B)
        if case.follows(Convention.UNJUDGED_LEAVE):
            judged_B = torch.stack(
                [_has_siblings(part_B, groups) for part_B in reward_components_BK.unbind(1)]
            ).any(0)
        advantages_B = normalize.batch_zscore(credit.advantages_B, judged_B, eps=EPS)
    else:
        case.expects(multi_objective_aggregation="sum_then_normalize")
        known = {
            "rewards_B": rewards_B,
            "groups": groups,
            "advantages_B": group_baselines.group_mean_baseline(rewards_B, groups).advantages_B,
        }
        known["advantages_T"] = known["advantages_B"]
        scales = {
            "group": cell(normalize.group_std, eps=EPS),
            "batch": cell(normalize.batch_std_raw, eps=EPS),
            "none": cell(normalize.none),
        }
        advantages_B = scales[scale](known)
        room = conventions.room_for_flat_groups(case, advantages_B, rewards_B, groups, EPS)
    values = {"advantages": advantages_B}
    rows = Rows(_finished(case, case.flags("completion_mask"), values))
    if case.has("tool_mask"):
        rows = Rows(rows.mask_BL & case.flags("tool_mask"))
    values["num_items_in_batch"] = float(rows.loss_mask_T.sum())
    if case.params.get("vllm_importance_sampling_mode"):
        values["importance_sampling_ratio"] = _weights(case, rows)
    else:
        case.peer_ignores("old_per_token_logps", "sampling_per_token_logps")
    metrics = _reward_metrics(reward_components_BK, rewards_B)
    if scale == "group" and case.params["multi_objective_aggregation"] == "sum_then_normalize":
        metrics["frac_reward_zero_std"] = (
            group_baselines.group_mean_baseline(rewards_B, groups)
            .metrics["reward/zero_std_frac"]
            .value()
        )
    return Ours(values, metrics, tolerances={"advantages": room})


def rloo(case: Case) -> Ours:
    reward_components_BK = case.tensor("rewards_per_func")
    rewards_B = _weighted(case, reward_components_BK, case.params["reward_weights"])
    groups = consecutive(rewards_B.numel(), case.params["num_generations"])
    metrics = _reward_metrics(reward_components_BK, rewards_B)
    if case.params["reward_clip_range"] is not None:
        low, high = case.params["reward_clip_range"]
        rewards_B = reward_shaping.clip(rewards_B, low=low, high=high)
    rows, old = Rows(case.flags("completion_mask")), case.tensor("old_per_token_logps")
    if case.has("ref_per_token_logps"):
        old_logprobs_T, ref_logprobs_T = (
            rows.pack(old),
            rows.pack(case.tensor("ref_per_token_logps")),
        )
        penalty_T = reward_shaping.kl_penalty(
            old_logprobs_T, ref_logprobs_T, rows.loss_mask_T, beta=case.params["beta"]
        )
        rewards_B = rewards_B + rows.segments.sum(penalty_T)
    else:
        case.expects(beta=0.0)
    advantages_B = group_baselines.leave_one_out(rewards_B, groups).advantages_B
    if case.params["normalize_advantages"]:
        leave = case.follows(Convention.UNJUDGED_LEAVE)
        judged_B = _has_siblings(rewards_B, groups) if leave else group_baselines.scored(rewards_B)
        advantages_B = normalize.batch_zscore(advantages_B, judged_B, eps=EPS)
    sums_B = rows.segments.sum(masked.kept(rows.pack(old), rows.loss_mask_T))
    return Ours({"advantages": advantages_B, "old_logps": sums_B}, metrics)


def _weighted(case: Case, reward_components_BK: Tensor, weights: list[float]) -> Tensor:
    """The weighted sum of what was scored, NaN where nothing was; or NaN where a part that counts was not."""
    weights_K = torch.tensor(weights, dtype=reward_components_BK.dtype)
    if not case.follows(Convention.PARTLY_SCORED):
        return torch.where(weights_K == 0, 0, reward_components_BK * weights_K).sum(1)
    return (
        (reward_components_BK * weights_K)
        .nansum(1)
        .masked_fill(reward_components_BK.isnan().all(1), float("nan"))
    )


def consecutive(rows: int, size: int) -> Groups:
    return Groups.from_ids(torch.arange(rows) // size)


def _has_siblings(rewards_B: Tensor, groups: Groups) -> Tensor:
    """Scored, and not alone: without a second scored member TRL's std is NaN, and the row leaves the statistics."""
    scored_B = group_baselines.scored(rewards_B)
    return scored_B & (groups.broadcast(groups.sum(scored_B)) > 1)


def _finished(case: Case, mask_BL: Tensor, values: dict[str, object]) -> Tensor:
    """Mask completions whose last token neither ends nor pads, if asked; their rewards stay in the statistics."""
    if not case.params.get("mask_truncated_completions"):
        case.peer_ignores("completion_ids", "eos_token_ids", "pad_token_id")
        return mask_BL
    ends = torch.tensor([*case.params["eos_token_ids"], case.params["pad_token_id"]])
    last_B = mask_BL.shape[1] - 1 - mask_BL.flip(1).int().argmax(1)
    truncated_B = ~torch.isin(
        case.tensor("completion_ids").long().gather(1, last_B[:, None]).squeeze(1), ends
    )
    mask_BL = mask_BL & filters.not_truncated(truncated_B)[:, None]
    values["completion_mask"] = mask_BL.double()
    return mask_BL


def _weights(case: Case, rows: Rows) -> Tensor:
    """One weight per token, 1 at padding; or one per row, where the level is the sequence."""
    level, _, action = case.params["vllm_importance_sampling_mode"].partition("_")
    known = rows.known(
        old_logprobs_T=case.tensor("old_per_token_logps"),
        sampler_logprobs_T=case.tensor("sampling_per_token_logps"),
    )
    weight_T = _correction(level, action, case.params["clip_min"] or 0.0, case.params["clip_max"])(
        known
    ).weight_T
    if level == "token":
        return rows.unpack(weight_T, fill=1.0)
    by_row_B = rows.segments.mean(weight_T, rows.loss_mask_T)
    return torch.where(rows.empty_B, 1.0, by_row_B)[:, None]


def _correction(level: str, action: str, low: float, high: float) -> Cell:
    cells = {
        ("token", "truncate"): lambda: cell(rollout_correction.token_truncate, floor=low, cap=high),
        ("token", "mask"): lambda: cell(rollout_correction.token_mask, low=low, high=high),
        ("sequence", "truncate"): lambda: cell(
            rollout_correction.product_truncate, floor=low, cap=high
        ),
        ("sequence", "mask"): lambda: cell(rollout_correction.product_mask, low=low, high=high),
    }
    return cells[level, action]()


def _reward_metrics(reward_components_BK: Tensor, rewards_B: Tensor) -> dict[str, Tensor]:
    found = {
        "reward": masked.mean(rewards_B, group_baselines.scored(rewards_B)),
        "reward_std": _std(rewards_B),
    }
    for number, part_B in enumerate(reward_components_BK.unbind(1)):
        found[f"rewards/r{number}/mean"] = masked.mean(part_B, group_baselines.scored(part_B))
        found[f"rewards/r{number}/std"] = _std(part_B)
    return found


def _std(x_B: Tensor) -> Tensor:
    return masked.variance(x_B, group_baselines.scored(x_B)).sqrt()


ADAPTERS: dict[str, Callable[[Case], Ours]] = {
    "trl.trainer.grpo_trainer.GRPOTrainer._generate_and_score_completions": grpo,
    "trl.trainer.rloo_trainer.RLOOTrainer._generate_and_score_completions": rloo,
}
