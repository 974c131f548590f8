"""Advantages by a row of the table or by a function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import ascent
from ascent.maths.batch import PackedBatch
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments


def batch(rewards: list[float]) -> PackedBatch:
    return {
        "segments": Segments.from_lengths([2] * 4),
        "groups": Groups.from_ids([0, 0, 1, 1]),
        "tokens_T": torch.arange(8),
        "loss_mask_T": torch.tensor([False, True] * 4),
        "rewards_B": torch.tensor(rewards),
        "truncated_B": torch.zeros(4, dtype=torch.bool),
    }


def answers(found: PackedBatch | None) -> list[float]:
    assert found is not None
    return [round(each, 4) for each in found["advantages_T"][1::2].tolist()]


def test_a_row_and_its_options() -> None:
    rewards = [1.0, 0.0, 3.0, 1.0]
    assert answers(ascent.add_advantages(batch(rewards), "dr_grpo")) == [0.5, -0.5, 1, -1]
    assert answers(ascent.add_advantages(batch(rewards), "grpo", advantage_norm="none")) == [
        0.5,
        -0.5,
        1,
        -1,
    ]
    assert answers(
        ascent.add_advantages(
            batch(rewards), "grpo", advantage="leave_one_out", advantage_norm="none"
        )
    ) == [*(1, -1, 2, -2)]
    assert answers(ascent.add_advantages(batch(rewards), "grpo", eps=0.1)) == [
        0.6195,
        -0.6195,
        0.6604,
        -0.6604,
    ]


def test_a_function_of_tensors() -> None:
    def per_sequence(rewards_B: Tensor) -> Tensor:
        return rewards_B - 1

    def per_token(rewards_B: Tensor, segments: Segments) -> Tensor:
        return segments.broadcast(rewards_B) * 2

    rewards = [1.0, float("nan"), 3.0, 1.0]
    found = ascent.add_advantages(batch(rewards), per_sequence)
    assert answers(found) == [0, 0, 2, 0]
    assert found is not None and found["loss_mask_T"][1::2].tolist() == [
        True,
        False,
        True,
        True,
    ]  # NaN: unscored
    assert answers(ascent.add_advantages(batch(rewards), per_token)) == [2, 0, 6, 2]


def test_groups_that_the_row_drops_are_left_out() -> None:
    found = ascent.add_advantages(batch([1.0, 1.0, 1.0, 0.0]), "rlvr")
    assert found is not None and found["tokens_T"].tolist() == [4, 5, 6, 7]
    assert ascent.add_advantages(batch([1.0, 1.0, 0.0, 0.0]), "rlvr") is None
    assert answers(ascent.add_advantages(batch([1.0, 1.0, 0.0, 0.0]), "grpo")) == [0, 0, 0, 0]


def wrong(rewards_B: Tensor) -> Tensor:
    return rewards_B[:2]


@pytest.mark.parametrize(
    ("advantage", "options", "words"),
    [
        ("dpo", {}, "dpo learns from pairs and has no advantages"),
        ("ppo", {}, r"ppo needs .*values_T.*critic.outputs\(batch"),
        ("grpo", {"kl": False}, "kl has no effect here"),
        (
            wrong,
            {},
            r"wrong returns shape \(2,\); return a tensor of 4 advantages, one per sequence, or of 8",
        ),
    ],
)
def test_wrong_calls(advantage: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ascent.add_advantages(batch([1.0, 0.0, 1.0, 0.0]), advantage, **options)


def test_rewards_are_needed() -> None:
    bare = batch([0.0] * 4)
    del bare["rewards_B"]
    with pytest.raises(ValueError, match=r"no rewards_B; pack rollouts with their rewards"):
        ascent.add_advantages(bare)


def test_a_functions_options() -> None:
    def clipped(rewards_B: Tensor, most: float = 1.0, *, times: float = 1.0, **_: Any) -> Tensor:
        return rewards_B.clamp(max=most) * times

    rewards = [1.0, 2.0, 3.0, 0.0]
    assert answers(ascent.add_advantages(batch(rewards), clipped)) == [1, 1, 1, 0]
    assert answers(ascent.add_advantages(batch(rewards), clipped, most=2.0, times=3.0)) == [
        3,
        6,
        6,
        0,
    ]
    with pytest.raises(ValueError, match="no option least; it has most, times"):
        ascent.add_advantages(batch(rewards), clipped, least=1)
