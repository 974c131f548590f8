"""Where we do not reproduce a peer: on purpose, with what we do instead; or because it means nothing outside the peer.

Every entry is a predicate over function, options and inputs, never over a case's name or its numbers, with a reason in
one line. A purposeful difference also says what OUR answer must be, and the runner asserts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from ascent.advantages import group_baselines
from ascent.maths.groups import Groups
from tests.golden.cases import EXACT, Case, Ours, as_tensor
from tests.golden.swift import WINDOW
from tests.golden.verl_losses import BYPASS, kept_in_bypass


class Spec(NamedTuple):
    """Something that has no meaning outside its peer: which cases ask for it, and its name."""

    name: str
    asked: Callable[[Case], bool]


class Difference(NamedTuple):
    """Which cases, why we refuse the peer's answer, and what is wrong with ours if it is not what we promise."""

    reason: str
    holds: Callable[[Case], bool]
    wrong: Callable[[Case, Ours], list[str]]


def not_applicable(case: Case) -> str | None:
    """The name of what only the peer has, if that is what the case is about, or None."""
    return next((spec.name for spec in NOT_APPLICABLE if spec.asked(case)), None)


def on_purpose(case: Case) -> Difference | None:
    return next((difference for difference in ON_PURPOSE if difference.holds(case)), None)


VERL = "core_algos.compute_"

# What has no meaning outside its peer would be named here, one by one. Nothing is.
NOT_APPLICABLE: tuple[Spec, ...] = ()


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
    alone_B = groups.broadcast(groups.sum(torch.ones_like(groups.ids_B))) == 1
    wrong = []
    for credit in (
        group_baselines.group_mean_baseline(rewards_B, groups),
        group_baselines.leave_one_out(rewards_B, groups),
    ):
        if not bool((credit.advantages_B[alone_B] == 0).all()) or bool(
            (credit.advantages_B[~alone_B] == 0).any()
        ):
            wrong.append(
                f"a group of one must get an advantage of exactly 0: {credit.advantages_B.tolist()}"
            )
        if credit.metrics["advantage/lone_group_frac"].value() == 0:
            wrong.append("groups of one must be counted")
    theirs = as_tensor(case.expected["advantages"]).reshape(-1)
    return (
        wrong
        if bool((theirs[alone_B].abs() > 0).all())
        else [*wrong, "the peer gives 0 too: not a difference"]
    )


def _all_equal_in_float32(case: Case) -> bool:
    return case.kind.startswith("all-equal groups in float32")


def _not_exactly_zero(case: Case, ours: Ours) -> list[str]:
    found = ours.values["advantages"]
    return (
        []
        if bool((found == 0).all())
        else [f"all-equal groups must give exactly 0, not {found.abs().max()}"]
    )


def _nothing_trained(case: Case) -> bool:
    """A fully masked batch through a peer that divides by a count of 0."""
    divides = case.function.startswith((f"{VERL}policy_loss", "openrlhf.models.loss.PolicyLoss"))
    divides |= "swift" in case.function and case.params.entries.get("loss_type") in WINDOW
    masks = [
        case.inputs.entries.get(name)
        for name in ("response_mask", "action_mask", "completion_mask")
    ]
    empty = any(mask is not None and not as_tensor(mask).any() for mask in masks)
    return divides and (empty or (case.function == BYPASS and not bool(kept_in_bypass(case).any())))


def _not_zero_and_finite(case: Case, ours: Ours) -> list[str]:
    slopes = [value for name, value in ours.values.items() if name.startswith("grad")]
    exact = float(ours.values["loss"].detach()) == 0 and all(
        bool((slope == 0).all()) for slope in slopes
    )
    return (
        []
        if exact and slopes
        else [f"a fully masked batch must give 0 with gradient 0: {ours.values}"]
    )


def _overflows(case: Case) -> bool:
    if case.function != "openrlhf.models.loss.LogExpLoss":
        return False
    chosen, rejected = (
        as_tensor(case.inputs.entries[name]) for name in ("chosen_reward", "reject_reward")
    )
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
