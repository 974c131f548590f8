"""ms-swift 4.6.0: advantages and the GRPO loss.

Its conventions: as TRL's GRPO, but k3 is capped and added BEFORE the mismatch weight, a sequence weight is the
geometric mean, sequences dropped for drift or length leave the mask, and window losses are multiplied by gradient
accumulation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ascent.advantages import filters, group_baselines, normalize
from ascent.cells import Cell, cell
from ascent.losses import (
    aggregation,
    kl,
    policy_losses,
    ratios,
    rollout_correction,
    sequence_policy_losses,
    token_weights,
)
from ascent.losses.objective import policy_terms, step_statistics
from ascent.maths import masked
from ascent.maths.groups import Groups
from tests.golden import conventions
from tests.golden.cases import Case, Ours, Tolerance
from tests.golden.conventions import Convention
from tests.golden.packed import NO_GUARD, Rows, gradient, mean_of, reduced
from tests.golden.trl_advantages import consecutive
from tests.golden.trl_policy import (
    LEVELS,
    given_focus,
    near_policy,
    rows_kept,
    top_tokens,
    two_sided,
)
from tests.golden.verl_losses import LARGEST_KL

EPS, GDPO_EPS = 1e-4, 1e-8
WINDOW = ("dapo", "cispo", "fipo")
FIPO_OPTIONS = tuple(
    f"fipo_{name}" for name in ("gamma", "clip_range", "clip_high_only", "safety_threshold")
)
REAL_OPTIONS = ("real_tau", "num_generations")
TEACHER_COEFFICIENT = 0.3  # what the vectors were made with; it is not among their options
ROLLOUT_WEIGHTS = (
    "swift rollout weights"  # inside the trainer's loss; only the cross-peer cases show them
)


def advantages(case: Case) -> Ours:
    reward_components_BK, weights = case.tensor("rewards_per_func"), case.tensor("reward_weights")
    rewards_B = total(case, reward_components_BK, weights)
    groups = consecutive(rewards_B.numel(), case.params["num_generations"])
    kind, scale = case.params["advantage_estimator"], case.params["scale_rewards"]
    plain_B = rewards_B
    if case.params["kl_in_reward"]:
        rewards_B = rewards_B - case.params["beta"] * case.tensor("kl_values")
    else:
        case.peer_ignores("beta", "kl_values")
    if scale == "gdpo":
        words = ",".join(str(float(weight)) for weight in weights)
        credit_B = group_baselines.decoupled_parts(
            reward_components_BK, groups, part_weights=words, eps=GDPO_EPS
        ).advantages_B
        room = conventions.room_for_flat_parts(
            case.tolerance, reward_components_BK, weights.tolist(), groups, GDPO_EPS
        )
        advantages_B = normalize.batch_zscore(
            credit_B, group_baselines.scored(rewards_B), eps=GDPO_EPS
        )
        return Ours(
            {"advantages": advantages_B, "rewards": plain_B}, tolerances={"advantages": room}
        )
    advantages_B = _scaled(kind, scale, rewards_B, groups)
    room = conventions.room_for_flat_groups(case, advantages_B, rewards_B, groups, EPS)
    return Ours({"advantages": advantages_B, "rewards": rewards_B}, tolerances={"advantages": room})


def total(case: Case, reward_components_BK: Tensor, weights_K: Tensor) -> Tensor:
    """What could not be scored counts as 0; or leaves the whole reward unscored."""
    reward_components_BK = torch.where(weights_K == 0, 0, reward_components_BK * weights_K)
    return (
        reward_components_BK.nansum(1)
        if case.follows(Convention.PARTLY_SCORED)
        else reward_components_BK.sum(1)
    )


def dynamic(case: Case) -> Ours:
    """Ragged groups; a request that occurs twice counts once, with its last reward, and both rows get its advantage."""
    rewards_B = total(case, case.tensor("rewards_per_func"), case.tensor("reward_weights"))
    requests_B, prompts_B = case.ids("request_ids"), case.ids("prompt_ids")
    if not case.follows(Convention.REQUESTED_TWICE):
        requests_B = torch.arange(rewards_B.numel())
    last = {int(request): row for row, request in enumerate(requests_B)}
    rows_U = torch.tensor([last[request] for request in range(len(last))])
    kind, scale = case.params["advantage_estimator"], case.params["scale_rewards"]
    groups = Groups.from_ids(prompts_B[rows_U])
    advantages_U = _scaled(kind, scale, rewards_B[rows_U], groups)
    room = conventions.room_for_flat_groups(case, advantages_U, rewards_B[rows_U], groups, EPS)
    room = Tolerance(room.relative, torch.as_tensor(room.absolute)[requests_B])
    return Ours(
        {"advantages": advantages_U[requests_B], "rewards": rewards_B},
        tolerances={"advantages": room},
    )


def _scaled(kind: str, scale: str, rewards_B: Tensor, groups: Groups) -> Tensor:
    """reinforce_plus_plus divides by the std of centered rewards, the others by that of raw ones."""
    credit = {
        "rloo": group_baselines.leave_one_out,
        "grpo": group_baselines.group_mean_baseline,
        "reinforce_plus_plus": group_baselines.group_mean_baseline,
    }[kind]
    advantages_B = credit(rewards_B, groups).advantages_B
    batch = (
        normalize.batch_std_centered if kind == "reinforce_plus_plus" else normalize.batch_std_raw
    )
    known = {
        "advantages_B": advantages_B,
        "advantages_T": advantages_B,
        "rewards_B": rewards_B,
        "groups": groups,
    }
    scales: Mapping[str, Callable[[], Cell]] = {
        "group": lambda: cell(normalize.group_std, eps=EPS),
        "batch": lambda: cell(batch, eps=EPS),
        "none": lambda: cell(normalize.none),
    }
    scaled_B: Tensor = scales[scale]()(known)
    return scaled_B


def grpo(case: Case) -> Ours:
    rows, logprobs = Rows(case.flags("completion_mask")), case.leaf("per_token_logps")
    case.peer_ignores("entropies", "tau_pos", "tau_neg", *FIPO_OPTIONS, *REAL_OPTIONS)
    finished, top = rows, None
    if case.params["overlong_filter"]:
        finished = rows.without(~filters.not_truncated(case.flags("truncated_mask")))
    else:
        case.peer_ignores("truncated_mask")
    if (case.params.get("top_entropy_quantile") or 1.0) < 1.0:
        # Tokens of high entropy, by a floor that is taken before overlong rows leave.
        asked = rows if case.follows(Convention.FLOOR_BEFORE) else finished
        top = asked.unpack(top_tokens(case, asked, asked.pack(case.tensor("entropies"))).double())
    rows, focuses = finished, []
    known = _known(case, rows, logprobs)
    drift = case.params["off_policy_sequence_mask_delta"]
    if drift is not None and case.follows(Convention.DROPPED_LEAVE):
        rows = rows.without(~_near(case, rows, known, drift))
        known = _known(case, rows, logprobs)
    elif drift is not None:
        known.setdefault("sampler_logprobs_T", known["old_logprobs_T"])
        focuses.append(cell(token_weights.near_policy, max_drift=drift))
    if case.params["loss_type"] == "real":
        return _real(case, rows, known, logprobs)
    if top is not None:
        known["top_T"] = rows.pack(top) > 0
        focuses.append(cell(given_focus))
    cells = {
        "ratio": cell(LEVELS[case.params["importance_sampling_level"]], guard=NO_GUARD),
        "policy_loss": _gate(case),
    }
    terms = policy_terms(
        known,
        rollout_correction=_correction(case),
        aggregation=_mode(case),
        token_weights=tuple(focuses),
        kl=cell(kl.weighted_k3, cap=LARGEST_KL) if case.params["beta"] else None,
        **cells,
    )
    loss = _reduced(case, terms)
    metrics = _metrics(rows, known, **cells)
    return Ours({"loss": loss, "grad_per_token_logps": gradient(loss, logprobs)}, metrics)


def _real(case: Case, rows: Rows, known: dict[str, Any], logprobs: Tensor) -> Ours:
    """A mean over all groups, also over those without a token; KL is a token mean of its own."""
    known["groups"] = consecutive(rows.count, case.params["num_generations"])
    gate, mode = (
        cell(sequence_policy_losses.real, tau=case.params["real_tau"]),
        cell(aggregation.group_mean),
    )
    shared = {"rollout_correction": cell(rollout_correction.none), "ratio": cell(ratios.none)}
    known |= step_statistics(known, [gate, mode], **shared)
    beta, k3 = case.params["beta"], cell(kl.k3, cap=LARGEST_KL)
    terms = dict(
        policy_terms(known, policy_loss=gate, aggregation=mode, kl=k3 if beta else None, **shared)
    )
    leash = terms.pop("kl", None)
    count = known["groups"].count if case.follows(Convention.EMPTY_GROUPS) else None
    loss, metrics = reduced(terms, count=count), {}
    if leash is not None:
        mean = masked.mean(k3(known), rows.loss_mask_T)
        loss = loss + beta * (mean if case.follows(Convention.KL_TOKEN_MEAN) else mean_of(leash))
        metrics = {"kl": mean}
    _correction(case)  # the sampler's log-probs are not read, whatever the mode
    case.peer_ignores(
        "importance_sampling_level", "epsilon_low", "epsilon_high", "delta", "max_completion_length"
    )
    case.peer_ignores("num_items_in_batch", "num_processes", "current_gradient_accumulation_steps")
    return Ours({"loss": loss, "grad_per_token_logps": gradient(loss, logprobs)}, metrics)


def rlsd(case: Case) -> Ours:
    """Advantages that a teacher has reweighed, and the same base with the teacher's log-ratio added."""
    rows, base_B = Rows(case.flags("completion_mask")), case.tensor("base_advantages")
    known = rows.known(
        advantages_T=base_B,
        teacher_logprobs_T=case.tensor("teacher_per_token_logps"),
        old_logprobs_T=case.tensor("policy_per_token_logps"),
    )
    names = {"mix": "lam", "radius": "clip_range", "negative_only": "negative_only"}
    weight_T = cell(
        token_weights.teacher_agreement,
        **{ours: case.params[theirs] for ours, theirs in names.items()},
    )(known)
    reweighed_T = masked.kept(known["advantages_T"] * weight_T, rows.loss_mask_T)
    added_T = cell(normalize.plus_teacher, coefficient=TEACHER_COEFFICIENT)(known)
    outside = torch.where(
        rows.keep_BL, 0, base_B[:, None]
    )  # its base advantage stands at padding too
    return Ours(
        {
            "advantages": rows.unpack(reweighed_T),
            "expand_with_teacher": rows.unpack(added_T) + outside,
        }
    )


def rollout_weights(case: Case) -> Ours:
    """The mismatch weights alone, from log-ratios old - sampler; 0 outside the mask."""
    rows, ratio = Rows(case.flags("mask")), case.tensor("log_ratio")
    known = rows.known(old_logprobs_T=ratio, sampler_logprobs_T=torch.zeros_like(ratio))
    weight_T = masked.kept(_correction(case)(known).weight_T, rows.loss_mask_T)
    return Ours({"weights": rows.unpack(weight_T)})


def _known(case: Case, rows: Rows, logprobs: Tensor) -> dict[str, Any]:
    names = {
        "old_logprobs_T": "old_per_token_logps",
        "ref_logprobs_T": "ref_per_token_logps",
        "sampler_logprobs_T": "rollout_per_token_logps",
    }
    padded = {ours: case.tensor(theirs) for ours, theirs in names.items() if case.has(theirs)}
    known = rows.known(logprobs_T=logprobs, advantages_T=case.tensor("advantages"), **padded)
    known.setdefault("old_logprobs_T", known["logprobs_T"].detach())
    return known


def _near(case: Case, rows: Rows, known: Mapping[str, Any], drift: float) -> Tensor:
    """A row's advantage is the mean of its tokens'; without sampler log-probs the old policy's stand in."""
    advantages_T = rows.segments.broadcast(
        rows.segments.mean(known["advantages_T"], rows.loss_mask_T)
    )
    sampled_T = known.get("sampler_logprobs_T", known["old_logprobs_T"])
    return rows_kept(rows, near_policy(rows, known["logprobs_T"], sampled_T, advantages_T, drift))


def _correction(case: Case) -> Cell:
    mode, cap = (
        case.params["rollout_importance_sampling_mode"],
        case.params["rollout_importance_sampling_threshold"],
    )
    cells: Mapping[str | None, Callable[[], Cell]] = {
        None: lambda: cell(rollout_correction.none),
        "token_truncate": lambda: cell(rollout_correction.token_truncate, cap=cap),
        "token_mask": lambda: cell(rollout_correction.token_mask, low=0.0, high=cap),
        "sequence_truncate": lambda: cell(rollout_correction.geometric_truncate, cap=cap),
        "sequence_mask": lambda: cell(
            rollout_correction.geometric_mask, low=0.0, high=cap, cap=NO_GUARD
        ),
    }
    return cells[mode]()


def _gate(case: Case) -> Cell:
    low, high, cap = case.params["epsilon_low"], case.params["epsilon_high"], case.params["delta"]
    kind = case.params["loss_type"]
    if kind == "cispo":
        return cell(policy_losses.cispo, floor=0.0, cap=high)
    if kind == "sapo":
        return cell(
            policy_losses.sapo,
            tau_positive=case.params["tau_pos"],
            tau_negative=case.params["tau_neg"],
        )
    if kind == "fipo":
        return cell(
            sequence_policy_losses.fipo,
            low=low,
            high=high,
            cap=cap or 0.0,
            gamma=case.params["fipo_gamma"],
            radius=case.params["fipo_clip_range"] or 0.0,
            high_only=case.params["fipo_clip_high_only"],
            safety=case.params["fipo_safety_threshold"] or 0.0,
        )
    if kind not in ("grpo", "bnpo", "dr_grpo", "dapo"):
        raise KeyError(f"loss_type {kind!r} is not one this adapter knows")
    return (
        cell(policy_losses.clip, low=low, high=high) if cap is None else two_sided(low, high, cap)
    )


def _mode(case: Case) -> Cell:
    kind, longest = case.params["loss_type"], case.params["max_completion_length"]
    if kind in ("grpo", "sapo"):
        return cell(aggregation.sequence_mean_token_mean, count_empty=True)
    if kind == "dr_grpo":
        return cell(aggregation.sequence_mean_token_scaled, length=longest, count_empty=True)
    return cell(aggregation.token_mean)


def _reduced(case: Case, terms: Any) -> Tensor:
    items, processes = case.params["num_items_in_batch"], case.params["num_processes"]
    steps, weights = case.params["current_gradient_accumulation_steps"], {"kl": case.params["beta"]}
    if case.params["loss_type"] in WINDOW:
        return reduced(terms, weights, count=items / processes) * (
            steps if case.follows(Convention.ACCUMULATED) else 1
        )
    per_row = case.params["loss_type"] in ("grpo", "sapo", "dr_grpo")
    if case.params["overlong_filter"] and per_row and not case.follows(Convention.FILTERED_STAY):
        return reduced(
            terms, weights, count=float(filters.not_truncated(case.flags("truncated_mask")).sum())
        )
    return reduced(terms, weights)


def _metrics(
    rows: Rows, known: Mapping[str, Any], ratio: Cell, policy_loss: Cell
) -> dict[str, Tensor]:
    marks = policy_loss({**known, "log_ratio_T": ratio(known)}).clip_masks
    found: dict[str, Tensor] = {}
    if "ref_logprobs_T" in known:
        kl_T = cell(kl.k3, cap=LARGEST_KL)(known)
        found["kl"] = masked.mean(kl_T, rows.loss_mask_T)
    if "policy/clip_frac_low" in marks:
        low, high = (
            masked.mean(marks[f"policy/clip_frac_{end}"].double(), rows.loss_mask_T)
            for end in ("low", "high")
        )
        found |= {"low_clip_mean": low, "high_clip_mean": high, "region_clip_mean": low + high}
        found |= {
            "low_clip_min": low,
            "high_clip_max": high,
        }  # extremes over processes, and there is one
    return found


ADAPTERS: dict[str, Callable[[Case], Ours]] = {
    "swift.rl_core.advantage.compute_advantages": advantages,
    "swift.rl_core.advantage.compute_advantages_dynamic": dynamic,
    "swift.rl_core.advantage.apply_rlsd_reweight": rlsd,
    "swift.rlhf_trainers.grpo_trainer.GRPOTrainer._compute_loss_and_metrics": grpo,
    ROLLOUT_WEIGHTS: rollout_weights,
}
