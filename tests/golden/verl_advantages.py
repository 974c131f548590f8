"""verl 0.9.1 advantage estimators, through `advantages.estimate`.

verl's conventions: a score is the plain sum of a row's token rewards, padding included; eps 1e-6 on the std unless
given; a group of one keeps its raw reward; whitening over tokens with (count + 1e-8) in its mean; GDPO whitens tokens
too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ascent.advantages import group_baselines, normalize, returns, token_baseline
from ascent.advantages.estimate import estimate
from ascent.cells import Cell, cell
from ascent.maths.groups import Groups
from tests.golden import conventions
from tests.golden.cases import EXACT, Case, Ours, Tolerance
from tests.golden.conventions import Convention
from tests.golden.packed import Rows

EPS = 1e-6


def grpo(case: Case) -> Ours:
    eps = case.params.get("epsilon", EPS)
    scale = (
        cell(normalize.group_std, eps=eps)
        if case.params["norm_adv_by_std_in_grpo"]
        else cell(normalize.none)
    )
    advantages_BL = _by_group(
        case, cell(group_baselines.group_mean_baseline, lone_reward=True), scale
    )
    rewards_B, groups = (
        case.tensor("token_level_rewards").sum(1),
        Groups.from_ids(case.ids("index")),
    )
    room = conventions.room_for_flat_groups(
        case, advantages_BL.abs().amax(1), rewards_B, groups, eps
    )
    return _same(advantages_BL, {"advantages": room, "returns": room})


def rloo(case: Case) -> Ours:
    return _same(
        _by_group(case, cell(group_baselines.leave_one_out, lone_reward=True), cell(normalize.none))
    )


def rloo_vectorized(case: Case) -> Ours:
    return _same(_by_group(case, cell(group_baselines.leave_one_out), cell(normalize.none)))


def opo(case: Case) -> Ours:
    return _same(
        _by_group(
            case, cell(group_baselines.length_weighted, lone_reward=True), cell(normalize.none)
        )
    )


def passk(case: Case) -> Ours:
    eps = case.params.get("epsilon", EPS)
    scale = (
        cell(normalize.group_std, eps=eps)
        if case.params["norm_adv_by_std_in_grpo"]
        else cell(normalize.none)
    )
    return _same(_by_group(case, cell(group_baselines.best_of_group), scale))


def gpg(case: Case) -> Ours:
    """A group of one has the mean 0; the factor over the batch applies to it too."""
    case.peer_ignores("alpha")  # overwritten inside
    credit = cell(
        group_baselines.success_scaled, scale=case.params.get("f_norm", 1.0), lone_reward=True
    )
    return _same(_by_group(case, credit, cell(normalize.none)))


def optimal_token_baseline(case: Case) -> Ours:
    """Positions are the tensor's columns, holes included."""
    return _token_baseline(case, by_position=True)


def multi_turn_optimal_token_baseline(case: Case) -> Ours:
    """Positions are counted in valid tokens."""
    return _token_baseline(case, by_position=False)


def _token_baseline(case: Case, *, by_position: bool) -> Ours:
    rows, groups = Rows(case.flags("response_mask")), Groups.from_ids(case.ids("index"))
    old, weighted = case.tensor("old_log_probs"), case.has("rollout_is_weights")
    padded = {"rewards_T": case.tensor("token_level_rewards"), "old_logprobs_T": old}
    padded["log_collision_T"] = case.tensor("sum_pi_squared").log()
    if weighted:  # our weight is old over rollout
        padded["sampler_logprobs_T"] = old - case.tensor("rollout_is_weights").log()
    known = {**rows.known(**padded), "groups": groups}
    lone_tail = case.params["handle_zero_tail"]
    credit = cell(
        token_baseline.optimal_token_baseline,
        corrected=weighted,
        lone_tail=lone_tail,
        by_position=by_position,
        lone_reward=True,
        eps=case.params["epsilon"],
    )
    to_go_T = cell(returns.reward_to_go)(known).advantages_T
    advantages_T = credit(known).advantages_T
    if by_position and not lone_tail and case.follows(Convention.ALONE):
        # A row without siblings keeps its return, but by columns empty rows are siblings too: then it is its own.
        own_B = groups.broadcast(
            (groups.sum(~rows.empty_B) == 1) & (groups.sum(torch.ones_like(rows.empty_B)) > 1)
        )
        advantages_T = torch.where(rows.segments.broadcast(own_B), 0, advantages_T)
    room = EXACT
    if case.follows(Convention.PLUS_1E8):
        # Beside empty rows only, a row is its own baseline, but for the epsilon in it; ours is an exact 0.
        lone_B = groups.broadcast(groups.sum(~rows.empty_B)) == 1
        largest_B = rows.unpack(to_go_T).abs().amax(1)
        room = Tolerance(EXACT.relative, torch.where(lone_B, 1e-5 * largest_B, EXACT.absolute))
    return Ours(
        {"advantages": rows.unpack(advantages_T), "returns": rows.unpack(to_go_T)},
        tolerances={"advantages": room},
    )


def reinforce_plus_plus_baseline(case: Case) -> Ours:
    return _same(
        _by_group(
            case,
            cell(group_baselines.group_mean_baseline, lone_reward=True),
            cell(normalize.whiten_token),
        ),
        _whitened(case),
    )


def gdpo(case: Case) -> Ours:
    rows, groups = Rows(case.flags("response_mask")), Groups.from_ids(case.ids("index"))
    eps = case.params.get("epsilon", EPS)
    if case.has("reward_components"):
        by_name = case.inputs["reward_components"]
        reward_components_BK = torch.tensor(
            [by_name[key] for key in case.params["gdpo_reward_keys"]], dtype=case.dtype
        ).T
    else:  # without components the one total is treated as the only component
        reward_components_BK = case.tensor("token_level_rewards").sum(1)[:, None]
    weights = case.params.get("gdpo_reward_weights") or [1.0] * reward_components_BK.shape[1]
    credit = cell(
        group_baselines.decoupled_parts,
        part_weights=",".join(map(str, weights)),
        eps=eps,
        lone_reward=True,
    )
    known = {
        **rows.known(),
        "rewards_B": reward_components_BK.sum(1),
        "reward_components_BK": reward_components_BK,
        "groups": groups,
    }
    found = estimate(
        known, reward_shaping=(), advantage=credit, advantage_norm=cell(normalize.whiten_token)
    )
    advantages_BL = rows.unpack(found.advantages_T)
    values = {name: advantages_BL for name in ("advantages", "returns") if name in case.expected}
    room = conventions.room_for_flat_parts(
        conventions.room_for_1e8(case), reward_components_BK, weights, groups, eps
    )
    return Ours(values, tolerances={name: room for name in values})


def gae(case: Case) -> Ours:
    rows = Rows(case.flags("response_mask"))
    credit = cell(returns.gae, gamma=case.params["gamma"], lam=case.params["lam"])
    found = _from_tokens(
        rows, credit, case.tensor("token_level_rewards"), values_T=case.tensor("values")
    )
    return Ours(found, tolerances={"advantages": conventions.room_for_1e8(case)})


def reinforce_plus_plus(case: Case) -> Ours:
    rows = Rows(case.flags("response_mask"))
    credit = cell(returns.reward_to_go, gamma=case.params["gamma"])
    found = _from_tokens(rows, credit, case.tensor("token_level_rewards"))
    to_go_T = credit({**rows.known(rewards_T=case.tensor("token_level_rewards"))}).advantages_T
    return Ours(
        {**found, "returns": rows.unpack(to_go_T)},
        tolerances={"advantages": conventions.room_for_1e8(case)},
    )


def remax(case: Case) -> Ours:
    """verl leaves the reward-to-go standing on tokens that are not trained."""
    rows = Rows(case.flags("response_mask"))
    known = rows.known(rewards_T=case.tensor("token_level_rewards") * rows.mask_BL)
    advantages_T = cell(group_baselines.greedy_baseline)(
        {**known, "greedy_rewards_B": case.tensor("reward_baselines")}
    ).advantages_T
    every_T = torch.ones_like(rows.loss_mask_T)
    to_go_T = cell(returns.reward_to_go)({**known, "loss_mask_T": every_T}).advantages_T
    advantages_T = torch.where(rows.loss_mask_T, advantages_T, to_go_T)
    return Ours({"advantages": rows.unpack(advantages_T), "returns": rows.unpack(to_go_T)})


def _by_group(case: Case, credit: Cell, scale: Cell) -> Tensor:
    """Sequence scores to token advantages."""
    rows, groups = Rows(case.flags("response_mask")), Groups.from_ids(case.ids("index"))
    known = {
        **rows.known(),
        "rewards_B": case.tensor("token_level_rewards").sum(1),
        "groups": groups,
    }
    return rows.unpack(
        estimate(known, reward_shaping=(), advantage=credit, advantage_norm=scale).advantages_T
    )


def _from_tokens(rows: Rows, credit: Cell, rewards_BL: Tensor, **padded: Tensor) -> dict[str, Any]:
    """Token rewards to whitened advantages. `estimate` places sequence rewards itself: the tokens come as a shape."""

    def given(token_rewards_T: Tensor) -> Tensor:
        return token_rewards_T

    known = {
        **rows.known(token_rewards_T=rewards_BL, **padded),
        "rewards_B": rewards_BL.new_zeros(rows.count),
    }
    found = estimate(
        known,
        reward_shaping=(cell(given),),
        advantage=credit,
        advantage_norm=cell(normalize.whiten_token),
    )
    answer = {"advantages": rows.unpack(found.advantages_T)}
    return (
        answer if found.returns_T is None else {**answer, "returns": rows.unpack(found.returns_T)}
    )


def _same(advantages_BL: Tensor, tolerances: dict[str, Tolerance] | None = None) -> Ours:
    """verl returns the advantages of sequence estimators a second time, as returns."""
    return Ours(
        {"advantages": advantages_BL, "returns": advantages_BL}, tolerances=tolerances or {}
    )


def _whitened(case: Case) -> dict[str, Tolerance]:
    room = conventions.room_for_1e8(case)
    return {"advantages": room, "returns": room}


PREFIX = "core_algos.compute_"
ADAPTERS: dict[str, Callable[[Case], Ours]] = {
    f"{PREFIX}grpo_outcome_advantage": grpo,
    f"{PREFIX}grpo_vectorized_outcome_advantage": grpo,
    f"{PREFIX}rloo_outcome_advantage": rloo,
    f"{PREFIX}rloo_vectorized_outcome_advantage": rloo_vectorized,
    f"{PREFIX}opo_outcome_advantage": opo,
    f"{PREFIX}reinforce_plus_plus_baseline_outcome_advantage": reinforce_plus_plus_baseline,
    f"{PREFIX}gdpo_outcome_advantage": gdpo,
    f"{PREFIX}grpo_passk_outcome_advantage": passk,
    f"{PREFIX}gpg_outcome_advantage": gpg,
    f"{PREFIX}optimal_token_baseline_advantage": optimal_token_baseline,
    f"{PREFIX}multi_turn_optimal_token_baseline_advantage": multi_turn_optimal_token_baseline,
    f"{PREFIX}gae_advantage_return": gae,
    f"{PREFIX}reinforce_plus_plus_outcome_advantage": reinforce_plus_plus,
    f"{PREFIX}remax_outcome_advantage": remax,
}
