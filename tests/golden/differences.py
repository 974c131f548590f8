"""Where we do not reproduce a peer: on purpose, with what we do instead; or because the algorithm is not built yet.

Every entry is a predicate over function, options and inputs, never over a case's name or its numbers, with a reason in
one line. A purposeful difference also says what OUR answer must be, and the runner asserts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ascent.advantages import group
from ascent.maths.groups import Groups
from tests.golden.cases import EXACT, Case, Ours, as_tensor
from tests.golden.swift import WINDOW
from tests.golden.verl_losses import BYPASS, kept_in_bypass
from tests.golden.verl_rollout import REJECTIONS


class Spec(NamedTuple):
    """An algorithm that is not built yet: which cases ask for it, and its name."""

    name: str
    asked: Callable[[Case], bool]


class Difference(NamedTuple):
    """Which cases, why we refuse the peer's answer, and what is wrong with ours if it is not what we promise."""

    reason: str
    holds: Callable[[Case], bool]
    wrong: Callable[[Case, Ours], list[str]]


def not_applicable(case: Case) -> str | None:
    """The name of the later algorithm that a case is about, or None."""
    return next((spec.name for spec in NOT_APPLICABLE if spec.asked(case)), None)


def on_purpose(case: Case) -> Difference | None:
    return next((difference for difference in ON_PURPOSE if difference.holds(case)), None)


def _function(*names: str) -> Callable[[Case], bool]:
    return lambda case: case.function in names


def _option(name: str, *values: Any) -> Callable[[Case], bool]:
    return lambda case: case.params.entries.get(name) in values


def _preference(*kinds: str) -> Callable[[Case], bool]:
    def asked(case: Case) -> bool:
        given = case.params.entries.get("loss_type")
        return case.function == TRL_DPO and any(kind in given for kind in kinds)

    return asked


def _robust(case: Case) -> bool:
    return _preference("robust")(case) and case.params.entries["label_smoothing"] > 0


def _modified(name: str, *usual: Any) -> Callable[[Case], bool]:
    return lambda case: case.function == TRL_DPO and case.params.entries.get(name, usual[0]) not in usual


def _rejection_by_distance(case: Case) -> bool:
    """k2 and k3 rejection; the k1 modes are our masks and filters."""
    options = case.params.entries.get("rollout_correction") or case.params.entries
    asked = options.get("rollout_rs")
    return isinstance(asked, str) and any(kind.strip() not in REJECTIONS for kind in asked.split(","))


def _alpha_reward(case: Case) -> bool:
    return "CPOTrainer" in case.function and case.params.entries.get("alpha", 0.0) != 0.0


def _between_the_ends(case: Case) -> bool:
    return "generalized_jsd_loss" in case.function and case.params.entries["beta"] not in (0.0, 1.0)


def _some_tokens_by_entropy(case: Case) -> bool:
    return (case.params.entries.get("top_entropy_quantile") or 1.0) < 1.0


TRL_DPO = "trl.trainer.dpo_trainer.DPOTrainer._compute_loss"
VERL = "core_algos.compute_"

NOT_APPLICABLE: tuple[Spec, ...] = (
    Spec("DPPO by total variation", _function(f"{VERL}policy_loss_dppo_tv")),
    Spec("DPPO by KL", _function(f"{VERL}policy_loss_dppo_kl")),
    Spec("DRO", _function(f"{VERL}policy_loss_dro")),
    Spec("clip-cov", _function(f"{VERL}policy_loss_clip_cov")),
    Spec("kl-cov", _function(f"{VERL}policy_loss_kl_cov")),
    Spec("pass@k advantage", _function(f"{VERL}grpo_passk_outcome_advantage")),
    Spec("GPG advantage (scaled by the share of non-zero rewards)", _function(f"{VERL}gpg_outcome_advantage")),
    Spec("optimal token baseline", _function(f"{VERL}optimal_token_baseline_advantage")),
    Spec("optimal token baseline, multi-turn", _function(f"{VERL}multi_turn_optimal_token_baseline_advantage")),
    Spec("rejection by k2 or k3 distance", _rejection_by_distance),
    Spec("VESPO", _option("loss_type", "vespo")),
    Spec("FIPO", _option("loss_type", "fipo")),
    Spec("REAL", _option("loss_type", "real")),
    Spec("top-entropy token mask", _some_tokens_by_entropy),
    Spec("top-entropy token mask, alone", _function("trl.trainer.grpo_trainer.GRPOTrainer.get_high_entropy_mask")),
    Spec("RLSD and teacher log-ratio", _function("swift.rl_core.advantage.apply_rlsd_reweight")),
    Spec("f-divergences", _modified("f_divergence_type", "reverse_kl")),
    Spec("LD-DPO", _modified("ld_alpha", None)),
    Spec("WPO weighting", _modified("use_weighting", False)),
    Spec(
        "mixture with BCO (MPO)",
        lambda case: _preference("bco_pair")(case) and len(case.params.entries["loss_type"]) > 1,
    ),
    Spec("BCO, pairs", _preference("bco_pair")),
    Spec("NCA", _preference("nca_pair")),
    Spec("SPPO", _preference("sppo_hard")),
    Spec("APO, zero", _preference("apo_zero")),
    Spec("APO, down", _preference("apo_down")),
    Spec("DiscoPOP", _preference("discopop")),
    Spec("length-normalised sigmoid", _preference("sigmoid_norm")),
    Spec("AOT", _preference("aot")),
    Spec("AOT, unpaired", _preference("aot_unpaired")),
    Spec("EXO", _preference("exo_pair")),
    Spec("robust DPO", _robust),
    Spec("AlphaPO", _alpha_reward),
    Spec("BCO, unpaired", _function("trl.experimental.bco.bco_trainer.BCOTrainer.bco_loss")),
    Spec("XPO", _function("trl.experimental.xpo.xpo_trainer.XPOTrainer._compute_losses")),
    Spec("Nash-MD", _function("trl.experimental.nash_md.nash_md_trainer.NashMDTrainer._compute_losses")),
    Spec("A2PO", _function("trl.experimental.a2po.a2po_trainer.A2POTrainer.compute_loss")),
    Spec("GKD between the forward and the reverse KL", _between_the_ends),
    Spec("process reward model", _function("openrlhf.models.loss.PRMLoss")),
)


def _rewards_and_groups(case: Case) -> tuple[torch.Tensor, Groups]:
    rewards = as_tensor(case.inputs.entries["token_level_rewards"], case.dtype).sum(1)
    return rewards, Groups.from_ids(case.inputs.entries["index"])


def _has_a_group_of_one(case: Case) -> bool:
    if case.kind != "groups of one" or case.function not in RAW_REWARD_WHEN_ALONE:
        return False
    _, groups = _rewards_and_groups(case)
    return bool((groups.sum(torch.ones_like(groups.ids_B)) == 1).any())


def _not_zero_when_alone(case: Case, ours: Ours) -> list[str]:
    """Our estimators, without the adapter's raw rewards: an exact 0 in groups of one, and only there."""
    rewards_B, groups = _rewards_and_groups(case)
    alone_B = groups.spread(groups.sum(torch.ones_like(groups.ids_B))) == 1
    wrong = []
    for credit in (group.centre(rewards_B, groups), group.leave_one_out(rewards_B, groups)):
        if not bool((credit.advantages_B[alone_B] == 0).all()) or bool((credit.advantages_B[~alone_B] == 0).any()):
            wrong.append(f"a group of one must get an advantage of exactly 0: {credit.advantages_B.tolist()}")
        if credit.metrics["groups_of_one"].value() == 0:
            wrong.append("groups of one must be counted")
    theirs = as_tensor(case.expected["advantages"]).reshape(-1)
    return wrong if bool((theirs[alone_B].abs() > 0).all()) else [*wrong, "the peer gives 0 too: not a difference"]


def _all_equal_in_float32(case: Case) -> bool:
    return case.kind.startswith("all-equal groups in float32")


def _not_exactly_zero(case: Case, ours: Ours) -> list[str]:
    found = ours.values["advantages"]
    return [] if bool((found == 0).all()) else [f"all-equal groups must give exactly 0, not {found.abs().max()}"]


def _nothing_trained(case: Case) -> bool:
    """A fully masked batch through a peer that divides by a count of 0."""
    divides = case.function.startswith((f"{VERL}policy_loss", "openrlhf.models.loss.PolicyLoss"))
    divides |= "swift" in case.function and case.params.entries.get("loss_type") in WINDOW
    masks = [case.inputs.entries.get(name) for name in ("response_mask", "action_mask", "completion_mask")]
    empty = any(mask is not None and not as_tensor(mask).any() for mask in masks)
    return divides and (empty or (case.function == BYPASS and not bool(kept_in_bypass(case).any())))


def _not_zero_and_finite(case: Case, ours: Ours) -> list[str]:
    slopes = [value for name, value in ours.values.items() if name.startswith("grad")]
    exact = float(ours.values["loss"].detach()) == 0 and all(bool((slope == 0).all()) for slope in slopes)
    return [] if exact and slopes else [f"a fully masked batch must give 0 with gradient 0: {ours.values}"]


def _overflows(case: Case) -> bool:
    if case.function != "openrlhf.models.loss.LogExpLoss":
        return False
    chosen, rejected = (as_tensor(case.inputs.entries[name]) for name in ("chosen_reward", "reject_reward"))
    return bool((rejected - chosen).exp().isinf().any())


def _row_without_tokens_in_a_geometric_mean(case: Case) -> bool:
    if case.params.entries.get("vllm_is_correction_type") != "seq-mask-tis":
        return False
    return not as_tensor(case.inputs.entries["action_mask"]).any(1).all()


def _not_finite(case: Case, ours: Ours) -> list[str]:
    """Ours is finite everywhere, and the peer's where that is finite."""
    wrong = []
    for name, value in ours.values.items():
        if value is None:
            continue
        mine, yours = torch.as_tensor(value).detach().double(), as_tensor(case.expected[name])
        if not bool(mine.isfinite().all()):
            wrong.append(f"{name} must be finite: {mine.tolist()}")
        agree = torch.isclose(mine, yours, rtol=EXACT.relative, atol=EXACT.absolute)
        if not bool(agree[yours.isfinite()].all()):
            wrong.append(f"{name} must equal the peer's where that is finite: {mine.tolist()}")
    return wrong


RAW_REWARD_WHEN_ALONE = tuple(
    f"{VERL}{name}_outcome_advantage"
    for name in ("grpo", "grpo_vectorized", "rloo", "opo", "reinforce_plus_plus_baseline")
)

ON_PURPOSE: tuple[Difference, ...] = (
    Difference(
        "group of one: verl gives the raw reward; without a sibling there is no baseline, so ours is 0, counted",
        _has_a_group_of_one,
        _not_zero_when_alone,
    ),
    Difference(
        "all-equal group in float32: peers divide the rounding of the mean by eps (up to 59.6); ours is exactly 0",
        _all_equal_in_float32,
        _not_exactly_zero,
    ),
    Difference(
        "fully masked micro-batch: the peer divides by a count of 0 (NaN); ours is 0 with gradient 0",
        _nothing_trained,
        _not_zero_and_finite,
    ),
    Difference(
        "LogExpLoss overflows: the peer computes log(1 + exp(x)) (inf, NaN gradient); ours is a log-sigmoid",
        _overflows,
        _not_finite,
    ),
    Difference(
        "seq-mask-tis with an empty row: the peer's mean over no tokens makes the whole loss NaN; ours skips the row",
        _row_without_tokens_in_a_geometric_mean,
        _not_finite,
    ),
)
