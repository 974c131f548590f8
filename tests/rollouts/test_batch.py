"""Rollouts as packed tensors: what is trained, what is known, and cutting by sequences."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from ascent.maths.batch import select
from ascent.records import Completion, Message, Prompt, Rollout, RoutedExperts, StepReward, Turn
from ascent.rollouts.batch import (
    check_step_rewards,
    concat_draws,
    pack_rollouts,
    place_step_rewards,
    reward_components,
    weighted_components,
)


def completion(tokens: tuple[int, ...], stop: str = "eos") -> Completion:
    logs = tuple(-0.1 * n for n in range(1, len(tokens) + 1))
    return Completion("p", 0, tokens, logs, (0,) * len(tokens), stop)  # type: ignore[arg-type]


def rollout(
    name: str,
    *turns: tuple[tuple[int, ...], tuple[int, ...]],
    reward: float | None = 1.0,
    **more: object,
) -> Rollout:
    prompt = Prompt(name, (Message("user", "?"),))
    made = tuple(Turn(observed, completion(sampled), "text") for observed, sampled in turns)
    return Rollout(prompt, 0, made, reward, **more)  # type: ignore[arg-type]


THREE = [
    rollout("a", ((1, 2), (3, 4)), reward=1.0, parts={"check/correct": 1.0, "length": 0.5}),
    rollout("b", ((5,), (6,)), reward=None, parts={"check/correct": None, "length": 0.25}),
    rollout(
        "a",
        ((1, 2), (7,)),
        ((8, 9), (10, 11)),
        reward=0.5,
        parts={"check/correct": 0.0, "length": 1.0},
    ),
]


def test_sampled_tokens_alone_are_trained_turn_by_turn() -> None:
    batch = pack_rollouts(THREE)
    assert batch["tokens_T"].tolist() == [1, 2, 3, 4, 5, 6, 1, 2, 7, 8, 9, 10, 11]
    assert batch["loss_mask_T"].int().tolist() == [0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 0, 1, 1]
    assert batch["sampler_logprobs_T"].tolist() == pytest.approx(
        [0, 0, -0.1, -0.2, 0, -0.1, 0, 0, -0.1, 0, 0, -0.1, -0.2]
    )
    assert batch["positions_T"].tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4, 5, 6]
    assert batch["groups"].ids_B.tolist() == [0, 1, 0]


def test_unscored_is_nan_and_correctness_is_a_part_of_its_own() -> None:
    batch = pack_rollouts(THREE)
    assert batch["rewards_B"][0] == 1.0
    assert math.isnan(batch["rewards_B"][1])
    assert batch["correct_B"][2] == 0.0  # the part, not the reward of .5
    assert math.isnan(batch["correct_B"][1])
    plain = pack_rollouts([rollout("a", ((1,), (2,)), reward=0.5)])
    assert plain["correct_B"].tolist() == [0.5]
    penalized = pack_rollouts(
        [rollout("a", ((1,), (2,)), reward=0.95, parts={"length": -0.5, "exact": 1.0})]
    )
    assert penalized["correct_B"].tolist() == [1.0]


def test_a_reward_that_failed_leaves_gaps_in_its_parts_and_no_part_of_its_own() -> None:
    weights = {"check/correct": 1.0, "check/form": 0.5}
    scored = rollout(
        "a",
        ((1,), (2,)),
        parts={"check/correct": 1.0, "check/form": 0.0, "seen": 3.0},
        weights=weights,
    )
    failed = rollout("a", ((1,), (3,)), reward=None, parts={"check": None, "seen": 4.0})
    parts = reward_components([scored, failed])
    assert list(parts) == ["check/correct", "check/form", "seen"]
    assert parts["seen"].tolist() == [3, 4] and math.isnan(parts["check/form"][1])
    found = weighted_components([scored, failed], ["check/correct", "check/form"])
    assert (
        found["reward_components_BK"][0].tolist() == [1, 0]
        and found["reward_components_BK"][1].isnan().all()
    )
    assert found["component_weights_BK"].tolist() == [[1, 0.5], [1, 0.5]]


def test_step_rewards_lie_on_the_sampled_tokens_they_name() -> None:
    one = rollout(
        "a", ((1, 2), (3,)), ((4,), (5, 6)), steps=(StepReward(0, 0.5), StepReward(2, 1.0))
    )
    batch = place_step_rewards([one], pack_rollouts([one]))
    assert batch["step_rewards_T"].tolist() == [0, 0, 0.5, 0, 0, 1.0]
    assert batch["step_ends_T"].tolist() == [False, False, True, False, False, True]


def routed(own: Rollout, *rows: list[int], width: int = 1) -> Rollout:
    """The same rollout; each turn says which experts all tokens so far took, the last one excepted."""
    turns = []
    for turn, numbers in zip(own.turns, rows, strict=True):
        raw, cut_at = b"".join(each.to_bytes(width, "little") for each in numbers), 2 * width
        found = RoutedExperts(raw[:-cut_at], raw[-cut_at:], 1, 2, width)  # type: ignore[arg-type]
        turns.append(replace(turn, completion=replace(turn.completion, routed_experts=found)))
    return replace(own, turns=tuple(turns))


@pytest.mark.parametrize(
    ("width", "none", "dtype"), [(1, 255, torch.uint8), (2, 32767, torch.int16)]
)
def test_a_token_has_the_experts_that_it_took_when_it_was_first_run(
    width: int, none: int, dtype: torch.dtype
) -> None:
    """Rollout 2 reads 1 2, says 7, reads 8 9, says 10 11: its second turn runs 1 2 again, and runs 7 8 9 10."""
    first = [0, 1, 2, 3]
    second = [90, 91, 92, 93, 4, 5, 6, 7, 8, 9, 10, 11]
    rollouts = [THREE[1], routed(THREE[2], first, second, width=width)]
    batch = pack_rollouts(rollouts)
    found_TLC = batch["routed_experts_TLC"]
    assert found_TLC.dtype == dtype and found_TLC.shape == (9, 1, 2)
    missing = [none, none]
    assert found_TLC[:, 0].tolist() == [
        *[missing, missing],  # of the other nothing is known
        *[[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], missing],
    ]
    assert torch.equal(select(batch, [1])["routed_experts_TLC"], found_TLC[2:])
    assert torch.equal(
        concat_draws(batch, batch)["routed_experts_TLC"], torch.cat([found_TLC, found_TLC])
    )
    assert "routed_experts_TLC" not in pack_rollouts(THREE)


def test_picking_rows_equals_packing_those_rollouts() -> None:
    whole, some = pack_rollouts(THREE), pack_rollouts([THREE[2], THREE[0]])
    picked = select(whole, [2, 0])
    for name in (
        "tokens_T",
        "loss_mask_T",
        "sampler_logprobs_T",
        "positions_T",
        "rewards_B",
        "correct_B",
    ):
        assert torch.equal(picked[name], some[name]), name
    assert picked["segments"].lengths_B.tolist() == some["segments"].lengths_B.tolist()
    assert picked["groups"].ids_B.tolist() == [0, 0]
    with pytest.raises(ValueError, match="oddly cannot be split"):
        select({**whole, "oddly": torch.zeros(3)}, [0])


def test_batches_join_to_what_their_rollouts_pack_to() -> None:
    other = [rollout("c", ((5,), (6,))), rollout("d", ((1, 2), (7,)))]
    both, whole = (
        concat_draws(pack_rollouts(THREE), pack_rollouts(other)),
        pack_rollouts(THREE + other),
    )
    for name in ("tokens_T", "loss_mask_T", "positions_T", "rewards_B", "correct_B"):
        assert torch.equal(both[name].nan_to_num(-1), whole[name].nan_to_num(-1)), name
    assert both["groups"].ids_B.tolist() == whole["groups"].ids_B.tolist()


def test_step_rewards_are_there_or_nothing_was_scored() -> None:
    scored, unscored, stepwise = (
        rollout("a", ((1,), (2,)), reward=reward, steps=given)
        for reward, given in ((1.0, ()), (None, ()), (1.0, (StepReward(0, 1.0),)))
    )
    with pytest.raises(
        ValueError, match="learns from a reward at every step, but the rewards gave one number"
    ):
        check_step_rewards([scored])
    check_step_rewards([unscored])
    nothing = place_step_rewards([unscored], pack_rollouts([unscored]))
    assert nothing["step_rewards_T"].tolist() == [0, 0] and not nothing["step_ends_T"].any()
    both = [unscored, stepwise]
    check_step_rewards(both)
    assert place_step_rewards(both, pack_rollouts(both))["step_rewards_T"].tolist() == [0, 0, 0, 1]
