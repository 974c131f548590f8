"""Group credit: worked numbers, exact zeros, unscored rewards, the counters, process steps, parts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ascent.advantages import group_baselines, normalize
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments

ONE = Groups.from_ids([0, 0, 0, 0])
REWARDS = torch.tensor([1.0, 0.8, 0.4, 0.2], dtype=torch.float64)
NAN = float("nan")


def near(x: Tensor, expected: list[float], tolerance: float = 1e-6) -> None:
    assert x.tolist() == pytest.approx(expected, abs=tolerance)


def test_golden_numbers_g1() -> None:
    centered = group_baselines.group_mean_baseline(REWARDS, ONE).advantages_B
    near(centered, [0.4, 0.2, -0.2, -0.4])
    near(
        normalize.group_std(centered, REWARDS, ONE, eps=1e-4),
        [1.095145, 0.547573, -0.547573, -1.095145],
    )
    near(
        group_baselines.leave_one_out(REWARDS, ONE).advantages_B,
        [0.533333, 0.266667, -0.266667, -0.533333],
    )
    near(
        group_baselines.length_weighted(REWARDS, torch.tensor([2, 4, 6, 8]), ONE).advantages_B,
        [0.54, 0.34, -0.06, -0.26],
    )


def test_the_numbers_people_learn_from_population_and_sample_std() -> None:
    centered = group_baselines.group_mean_baseline(REWARDS, ONE).advantages_B
    near(
        normalize.group_std(centered, REWARDS, ONE, ddof=0, eps=1e-9),
        [1.2649, 0.6325, -0.6325, -1.2649],
        1e-4,
    )
    near(
        normalize.group_std(centered, REWARDS, ONE, ddof=1, eps=1e-9),
        [1.0954, 0.5477, -0.5477, -1.0954],
        1e-4,
    )


@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7, 1.1, 1 / 3])
@pytest.mark.parametrize("size", range(2, 65))
def test_equal_rewards_give_an_exact_zero_in_float32(size: int, reward: float) -> None:
    rewards = torch.full((size,), reward, dtype=torch.float32)
    groups = Groups.from_ids([0] * size)
    for function in (group_baselines.group_mean_baseline, group_baselines.leave_one_out):
        credit = function(rewards, groups)
        assert credit.advantages_B.tolist() == [0.0] * size
        assert credit.metrics["reward/zero_std_frac"].value() == 1
        scaled = normalize.group_std(credit.advantages_B, rewards, groups, eps=1e-9)
        assert scaled.tolist() == [0.0] * size


def test_group_advantages_sum_to_zero() -> None:
    rng = torch.Generator().manual_seed(0)
    groups = Groups.from_ids(torch.randint(0, 9, (60,), generator=rng))
    rewards = torch.randn(60, dtype=torch.float64, generator=rng)
    for function in (group_baselines.group_mean_baseline, group_baselines.leave_one_out):
        near(groups.sum(function(rewards, groups).advantages_B), [0.0] * groups.count, 1e-12)


def test_unscored_rewards_are_left_out_not_counted_as_zero() -> None:
    rewards = torch.tensor([1.0, NAN, 0.0, 0.5], dtype=torch.float64)
    credit = group_baselines.group_mean_baseline(rewards, ONE)
    near(credit.advantages_B, [0.5, 0, -0.5, 0])
    assert credit.metrics["reward/failure_frac"].value() == 0.25
    near(group_baselines.leave_one_out(rewards, ONE).advantages_B, [0.75, 0, -0.75, 0])
    near(group_baselines.raw(rewards).advantages_B, [1, 0, 0, 0.5])


def test_a_group_shrunk_to_one_gets_zero_and_a_counter() -> None:
    rewards = torch.tensor([1.0, NAN, NAN, NAN, 3.0, 5.0], dtype=torch.float64)
    credit = group_baselines.group_mean_baseline(rewards, Groups.from_ids([0, 0, 0, 0, 1, 1]))
    near(credit.advantages_B, [0, 0, 0, 0, -1, 1])
    assert credit.metrics["advantage/lone_group_frac"].value() == 0.5
    everything_lost = group_baselines.group_mean_baseline(
        torch.full((4,), NAN, dtype=torch.float64), ONE
    )
    assert everything_lost.advantages_B.tolist() == [0.0] * 4


def test_an_infinite_reward_is_refused_with_its_place() -> None:
    with pytest.raises(ValueError, match="reward inf at index 2"):
        group_baselines.group_mean_baseline(torch.tensor([0.0, 1.0, math.inf, 0.0]), ONE)


def test_mismatched_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="mismatched lengths"):
        group_baselines.group_mean_baseline(REWARDS[:3], ONE)


def test_greedy_baseline_is_subtracted_from_the_reward_to_go() -> None:
    segments = Segments.from_lengths([2, 1])
    rewards = torch.tensor([-0.1, 1.0, 0.5], dtype=torch.float64)
    credit = group_baselines.greedy_baseline(
        rewards, torch.tensor([0.4, 0.5]), torch.ones(3, dtype=torch.bool), segments
    )
    near(credit.advantages_T, [0.5, 0.6, 0.0])


def test_without_a_scored_greedy_answer_nothing_is_said_of_a_sequence() -> None:
    segments = Segments.from_lengths([2, 1])
    rewards = torch.tensor([-0.1, 1.0, 0.5], dtype=torch.float64)
    credit = group_baselines.greedy_baseline(
        rewards, torch.tensor([NAN, 0.2]), torch.ones(3, dtype=torch.bool), segments
    )
    near(credit.advantages_T, [0.0, 0.0, 0.3])
    assert credit.metrics["advantage/no_baseline_frac"].value() == 0.5


def test_length_weighted_falls_back_when_nothing_was_generated() -> None:
    credit = group_baselines.length_weighted(REWARDS, torch.zeros(4, dtype=torch.int64), ONE)
    near(credit.advantages_B, [0.4, 0.2, -0.2, -0.4])


def test_process_steps_are_normalized_over_the_group_and_summed_to_the_right() -> None:
    segments, groups = Segments.from_lengths([3, 2]), Groups.from_ids([0, 0])
    ends = torch.tensor([True, True, False, False, True])
    steps = torch.tensor([1.0, 0.0, 9.0, 9.0, 0.5], dtype=torch.float64)
    trained = torch.ones(5, dtype=torch.bool)
    credit = group_baselines.steps_to_go(steps, ends, trained, groups, segments, eps=1e-12)
    near(credit.advantages_T, [0.0, -1.0, 0.0, 0.0, 0.0])  # z-scores of (1, 0, .5): 1, -1, 0
    trained[0] = False
    assert group_baselines.steps_to_go(steps, ends, trained, groups, segments).advantages_T[0] == 0


def test_equal_process_steps_give_an_exact_zero_and_unscored_ones_nothing() -> None:
    segments, groups = Segments.from_lengths([2, 1]), Groups.from_ids([0, 0])
    steps = torch.tensor([1.1, NAN, 1.1])
    credit = group_baselines.steps_to_go(
        steps, torch.ones(3, dtype=torch.bool), torch.ones(3, dtype=torch.bool), groups, segments
    )
    assert credit.advantages_T.tolist() == [0.0, 0.0, 0.0]


def test_golden_numbers_g11_two_reward_parts() -> None:
    groups = Groups.from_ids([0] * 4 + [1] * 4)
    parts = torch.tensor(
        [[1, 1], [1, 0], [0, 1], [0, 0], [1, 0], [0, 0], [0, 0], [0, 0]], dtype=torch.float64
    )
    summed = group_baselines.decoupled_parts(parts, groups).advantages_B
    final = normalize.batch_zscore(summed, torch.ones(8, dtype=torch.bool))
    near(final, [1.527404, 0, 0, -1.527404, 1.322735, -0.440912, -0.440912, -0.440912], 2e-6)
    total = parts.sum(1)
    first = normalize.group_std(
        group_baselines.group_mean_baseline(total, groups).advantages_B, total, groups
    )
    near(first, [1.224595, 0, 0, -1.224595, 1.4997, -0.4999, -0.4999, -0.4999], 2e-6)


def test_a_missing_part_does_not_spoil_the_others() -> None:
    parts = torch.tensor([[1.0, NAN], [0.0, 1.0], [0.0, 0.0], [1.0, 0.5]], dtype=torch.float64)
    first_alone = group_baselines.decoupled_parts(parts[:, :1], ONE).advantages_B
    both = group_baselines.decoupled_parts(parts, ONE).advantages_B
    assert float(both[0]) == pytest.approx(float(first_alone[0]))
    assert bool(torch.isfinite(both).all())


def test_part_weights() -> None:
    parts = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 0.5]], dtype=torch.float64)
    only_first = group_baselines.decoupled_parts(parts, ONE, part_weights="1,0").advantages_B
    as_rewarded = group_baselines.decoupled_parts(
        parts, ONE, torch.tensor([[1.0, 0.0]] * 4)
    ).advantages_B
    near(as_rewarded, only_first.tolist())
    overruled = group_baselines.decoupled_parts(
        parts, ONE, torch.tensor([[0.0, 1.0]] * 4), part_weights="1,0"
    ).advantages_B
    near(overruled, only_first.tolist())
    near(only_first, group_baselines.decoupled_parts(parts[:, :1], ONE).advantages_B.tolist())
    with pytest.raises(ValueError, match="one number per part"):
        group_baselines.decoupled_parts(parts, ONE, part_weights="1,2,3")


def test_only_the_best_learns_and_a_tie_teaches_nothing() -> None:
    groups = Groups.from_ids([0, 0, 0, 0, 1, 1, 1, 2, 2])
    rewards = torch.tensor([1.0, 0.8, 0.4, 0.2, 1.0, 1.0, 0.0, 0.5, NAN], dtype=torch.float64)
    credit = group_baselines.best_of_group(rewards, groups)
    near(credit.advantages_B, [0.2, 0, 0, 0, 0, 0, 0, 0, 0])
    near(normalize.group_std(credit.advantages_B[:4], REWARDS, ONE, eps=1e-6)[:1], [0.547721], 1e-5)
    assert credit.metrics["advantage/lone_group_frac"].value() == pytest.approx(1 / 3)


def test_success_scaled_counts_who_earned_anything() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    near(group_baselines.success_scaled(rewards, ONE).advantages_B, [3.0, -1.0, -1.0, -1.0])
    near(
        group_baselines.success_scaled(rewards, ONE, scale=2.0).advantages_B,
        [1.5, -0.5, -0.5, -0.5],
    )
    near(group_baselines.success_scaled(REWARDS, ONE).advantages_B, [0.4, 0.2, -0.2, -0.4])


def test_optimal_values_lie_between_the_mean_and_the_best() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    near(group_baselines.optimal_values(rewards, ONE, beta=0.5), [0.477229] * 4)
    near(group_baselines.optimal_values(rewards, ONE, beta=1e4), [0.25] * 4, 1e-4)
    near(group_baselines.optimal_values(rewards, ONE, beta=1e-4), [1.0] * 4, 1e-3)
    pair = Groups.from_ids([0, 0, 1, 1])
    near(
        group_baselines.optimal_values(torch.tensor([NAN, 0.5, NAN, NAN]).double(), pair),
        [0.5, 0.5, 0, 0],
    )


def test_against_optimum_and_opponent_by_hand() -> None:
    values = torch.full((4,), 0.477229, dtype=torch.float64)
    rewards = torch.tensor([1.0, 0.0, NAN, 0.0], dtype=torch.float64)
    near(
        group_baselines.against_optimum(rewards, values).advantages_B,
        [0.522771, -0.477229, 0, -0.477229],
    )
    segments = Segments.from_lengths([2, 2])
    old = torch.tensor([-1.0, -1.0, -1.0, NAN], dtype=torch.float64)
    reference = torch.tensor([-1.5, -1.0, -2.0, NAN], dtype=torch.float64)
    trained = torch.tensor([True, True, True, False])
    chance = torch.tensor([0.8, 0.5], dtype=torch.float64)
    found = group_baselines.against_opponent(chance, old, reference, trained, segments, beta=0.1)
    near(found.advantages_T, [0.25, 0.3, -0.1, 0.0])
    with pytest.raises(ValueError, match="7 is no probability of beating the opponent"):
        group_baselines.against_opponent(
            torch.tensor([0.8, 7.0]), old, reference, trained, segments, beta=0.1
        )


def test_a_lone_reward_stays_whole_where_a_row_asks_for_it() -> None:
    """Groups (1, .5), (.8) and (.4, unscored): the second and third have one scored member each; the count stays."""
    rewards, groups = (
        torch.tensor([1.0, 0.5, 0.8, 0.4, NAN], dtype=torch.float64),
        Groups.from_ids([0, 0, 1, 2, 2]),
    )
    lengths = torch.tensor([1, 3, 5, 7, 9])
    near(group_baselines.group_mean_baseline(rewards, groups).advantages_B, [0.25, -0.25, 0, 0, 0])
    credit = group_baselines.group_mean_baseline(rewards, groups, lone_reward=True)
    near(credit.advantages_B, [0.25, -0.25, 0.8, 0.4, 0])
    assert credit.metrics["advantage/lone_group_frac"].value() == pytest.approx(2 / 3)
    near(
        group_baselines.leave_one_out(rewards, groups, lone_reward=True).advantages_B,
        [0.5, -0.5, 0.8, 0.4, 0],
    )
    near(
        group_baselines.length_weighted(rewards, lengths, groups, lone_reward=True).advantages_B,
        [0.375, -0.125, 0.8, 0.4, 0],
    )
    halved = group_baselines.success_scaled(
        rewards, groups, scale=2.0, lone_reward=True
    ).advantages_B
    near(halved, [0.125, -0.125, 0.4, 0.2, 0])


def test_a_lone_reward_is_on_its_own_scale() -> None:
    """Divided by 1 + eps and not by 0 + eps, with either std and in parts."""
    rewards, groups = torch.tensor([1.0, 0.5, 0.8], dtype=torch.float64), Groups.from_ids([0, 0, 1])
    credit = group_baselines.group_mean_baseline(rewards, groups, lone_reward=True).advantages_B
    for ddof, std in ((0, 0.25), (1, 0.125**0.5)):
        scaled = normalize.group_std(credit, rewards, groups, eps=0.1, ddof=ddof)
        near(scaled, [0.25 / (std + 0.1), -0.25 / (std + 0.1), 0.8 / 1.1])
    parts = torch.stack([rewards, -rewards], dim=1)
    found = group_baselines.decoupled_parts(
        parts, groups, part_weights="1,0.5", eps=0.1, lone_reward=True
    ).advantages_B
    near(found[2:], [0.5 * 0.8 / 1.1])
