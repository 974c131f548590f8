"""The optimal token baseline: the worked group, positions with holes, lone tails, mismatch weights, groups of one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ascent.advantages.token_baseline import optimal_token_baseline
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments


def of(
    lengths: list[int],
    rewards: list[float],
    energies: list[float],
    trained: list[bool] | None = None,
    **options: Any,
) -> Tensor:
    """Energies e = 1 - 2 pi + collision are made with pi = 1/2, so that the collision is e itself."""
    count = len(energies)
    old = torch.full((count,), math.log(0.5), dtype=torch.float64)
    collision = torch.tensor(energies, dtype=torch.float64).log()
    mask = torch.ones(count, dtype=torch.bool) if trained is None else torch.tensor(trained)
    groups = options.pop("groups", Groups.from_ids([0] * len(lengths)))
    earned, segments = torch.tensor(rewards, dtype=torch.float64), Segments.from_lengths(lengths)
    return optimal_token_baseline(
        earned, old, collision, mask, segments, groups, **options
    ).advantages_T


def test_worked_group() -> None:
    found = of([2, 2], [0, 1, 0, 0], [0.5, 0.3, 0.2, 0.4])
    assert found.tolist() == pytest.approx(
        [1 - 0.714286, 1 - 0.571429, -0.714286, -0.571429], abs=1e-6
    )


def test_the_lone_tail_has_no_baseline_unless_asked() -> None:
    lengths, rewards, energies = [3, 1], [0.0, 0, 1, 0], [0.5, 0.5, 0.5, 0.5]
    assert of(lengths, rewards, energies).tolist() == pytest.approx([0.5, 1, 1, -0.5], abs=1e-6)
    own = of(lengths, rewards, energies, lone_tail=False)
    assert own.tolist() == pytest.approx([0.5, 0, 0, -0.5], abs=1e-6)


def test_positions_are_counted_in_trained_tokens_unless_asked() -> None:
    """The first sequence has a hole in its second place; its second token meets the other's second, or its third."""
    lengths, trained = [3, 3], [True, False, True, True, True, True]
    rewards, energies = [0.0, 9, 1, 0, 0, 0], [0.5] * 6
    by_rank = of(lengths, rewards, energies, trained, lone_tail=False)
    assert by_rank.tolist() == pytest.approx([0.5, 0, 0.5, -0.5, -0.5, 0], abs=1e-6)
    by_place = of(lengths, rewards, energies, trained, lone_tail=False, by_position=True)
    assert by_place.tolist() == pytest.approx([0.5, 0, 0.6, -0.5, 0, -0.4], abs=1e-6)


@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.parametrize("prompt", [0, 1, 3, 10])
def test_a_prompt_is_no_position(by_position: bool, prompt: int) -> None:
    """Whatever its length, the tail that only the longer completion has begins after the shorter one's two tokens."""
    lengths, trained = (
        [prompt + 4, prompt + 2],
        [*[False] * prompt, *[True] * 4, *[False] * prompt, *[True] * 2],
    )
    pad = [0.0] * prompt
    rewards, energies = (
        [*pad, 0, 0, 0, 1, *pad, 0, 0],
        [*[0.5] * (prompt + 4), *[0.5] * (prompt + 2)],
    )
    found = of(lengths, rewards, energies, trained, by_position=by_position)
    assert found[torch.tensor(trained)].tolist() == pytest.approx(
        [0.5, 0.5, 1, 1, -0.5, -0.5], abs=1e-6
    )


def test_mismatch_weights_scale_the_energy_by_their_square() -> None:
    rollout = torch.tensor([math.log(0.25), math.log(0.5)], dtype=torch.float64)  # w = 2 and 1
    found = of([1, 1], [1, 0], [0.5, 0.5], corrected=True, sampler_logprobs_T=rollout)
    assert found.tolist() == pytest.approx([1 - 0.8, -0.8], abs=1e-6)
    with pytest.raises(ValueError, match="needs the sampler's log-probs"):
        of([1, 1], [1, 0], [0.5, 0.5], corrected=True)


def test_a_sampler_without_a_number_weighs_one_and_a_wild_one_stays_finite() -> None:
    nan = torch.tensor([math.nan, math.log(0.25)], dtype=torch.float64)  # w = 1 and 2
    found = of([1, 1], [1, 0], [0.5, 0.5], corrected=True, sampler_logprobs_T=nan)
    assert found.tolist() == pytest.approx([1 - 0.2, -0.2], abs=1e-6)
    held = [
        of(
            [1, 1],
            [1, 0],
            [0.5, 0.5],
            corrected=True,
            sampler_logprobs_T=torch.tensor([far, -20.0], dtype=torch.float64),
        )
        for far in (-400.0, -float("inf"))
    ]
    w = [math.exp(2 * 20), math.exp(2 * (20 - math.log(2)))]  # the first at its bound, e^20
    for each in held:
        assert each.tolist() == pytest.approx([w[1] / sum(w), -w[0] / sum(w)], abs=1e-6)


def test_a_group_of_one_gets_zero_even_beside_an_empty_sibling() -> None:
    groups = Groups.from_ids([0, 1, 1])
    assert of([1, 1, 0], [1, 1], [0.5, 0.5], groups=groups).tolist() == [0.0, 0.0]


def test_a_group_that_earned_the_same_throughout_gets_zero_and_its_longest_member_too() -> None:
    """Not where the same sum was earned at other places: then later tokens are worth more or less than others'."""
    lengths, energies = [3, 1], [0.5, 0.3, 0.2, 0.4]
    assert of(lengths, [0.0, 0, 0.7, 0.7], energies).tolist() == [0.0] * 4
    assert of(lengths, [0.7, 0, 0, 0.7], energies).tolist() == pytest.approx([0, 0, 0, 0], abs=1e-6)
    early = of([2, 2], [0.7, 0, 0, 0.7], energies)
    assert early.tolist() == pytest.approx([0, -0.7 * 0.6 / 1.4, 0, 0.7 * 0.8 / 1.4], abs=1e-6)
    beside = Groups.from_ids([0, 0, 1, 1])
    both = of([3, 1, 2, 1], [0.0, 0, 0.7, 0.7, 0, 1, 0], [0.5] * 7, groups=beside)
    assert both.tolist() == pytest.approx([0, 0, 0, 0, 0.5, 1, -0.5], abs=1e-6)


def test_a_group_of_one_keeps_its_reward_to_go_where_a_row_asks_for_it() -> None:
    groups = Groups.from_ids([0, 1, 1])
    found = of([2, 1, 1], [0.5, 1, 1, 0], [0.5] * 4, groups=groups, lone_reward=True)
    assert found.tolist() == pytest.approx([1.5, 1, 0.5, -0.5], abs=1e-6)
