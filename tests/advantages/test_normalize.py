"""The normalizers: three batch stds by name, whitening by token and by sequence, flat batches."""

from __future__ import annotations

import pytest
import torch

from ascent.advantages import group_baselines, normalize
from ascent.maths.groups import Groups

GROUPS = Groups.from_ids([0] * 4 + [1] * 4)
REWARDS = torch.tensor([1.0, 1, 0, 0, 1, 0, 0, 0], dtype=torch.float64)
CENTRED = group_baselines.group_mean_baseline(REWARDS, GROUPS).advantages_B


def test_golden_numbers_g2_three_batch_stds() -> None:
    assert float(REWARDS.std()) == pytest.approx(0.517549, abs=1e-6)
    raw = normalize.batch_std_raw(CENTRED, REWARDS, eps=1e-12)
    assert raw.tolist() == pytest.approx(
        [0.966092, 0.966092, -0.966092, -0.966092, 1.449138] + [-0.483046] * 3, abs=1e-6
    )
    centered = normalize.batch_std_centered(CENTRED, REWARDS, GROUPS, eps=1e-12)
    assert centered.tolist() == pytest.approx([1, 1, -1, -1, 1.5, -0.5, -0.5, -0.5], abs=1e-6)
    about_group = normalize.batch_rms_group(CENTRED, REWARDS, GROUPS, eps=1e-12)
    assert (CENTRED / about_group).tolist() == pytest.approx([0.467707] * 8, abs=1e-6)


def test_token_whitening_is_dominated_by_length_and_sequence_whitening_is_not() -> None:
    per_token = torch.cat([torch.ones(10), -torch.ones(1000)]).double()
    white = normalize.whiten_token(per_token, torch.ones(1010, dtype=torch.bool))
    assert [float(white[0]), float(white[-1])] == pytest.approx([9.995, -0.0999], abs=1e-3)
    both = normalize.whiten_sequence(
        torch.tensor([1.0, -1.0]).double(), torch.ones(2, dtype=torch.bool)
    )
    assert both.tolist() == pytest.approx([0.7071, -0.7071], abs=1e-4)


def test_a_flat_batch_stays_zero_not_nan() -> None:
    rewards = torch.full((8,), 1.1)
    zero = group_baselines.group_mean_baseline(rewards, GROUPS).advantages_B
    scored = torch.ones(8, dtype=torch.bool)
    for scaled in (
        normalize.batch_std_raw(zero, rewards),
        normalize.batch_std_centered(zero, rewards, GROUPS),
        normalize.batch_rms_group(zero, rewards, GROUPS),
        normalize.batch_zscore(zero, scored),
        normalize.whiten_sequence(zero, scored),
        normalize.whiten_token(zero, scored),
        normalize.none(zero),
    ):
        assert scaled.tolist() == [0.0] * 8


def test_unscored_sequences_stay_out_of_batch_statistics() -> None:
    rewards = torch.cat([REWARDS, torch.tensor([float("nan")], dtype=torch.float64)])
    groups = Groups.from_ids([0] * 4 + [1] * 5)
    centered = group_baselines.group_mean_baseline(rewards, groups).advantages_B
    with_hole = normalize.batch_std_centered(centered, rewards, groups)
    torch.testing.assert_close(
        with_hole[:8], normalize.batch_std_centered(CENTRED, REWARDS, GROUPS)
    )
    assert float(with_hole[8]) == 0


def test_lone_success_has_the_known_largest_advantage() -> None:
    for size, expected in ((8, 2.47), (64, 7.88)):
        rewards = torch.zeros(size, dtype=torch.float64)
        rewards[0] = 1
        groups = Groups.from_ids([0] * size)
        z = normalize.group_std(
            group_baselines.group_mean_baseline(rewards, groups).advantages_B,
            rewards,
            groups,
            eps=1e-9,
        )
        assert float(z[0]) == pytest.approx(expected, abs=0.01)


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"eps=0.*above 0"):
        normalize.group_std(CENTRED, REWARDS, GROUPS, eps=0)
    with pytest.raises(ValueError, match=r"ddof=2.*at most 1"):
        normalize.group_std(CENTRED, REWARDS, GROUPS, ddof=2)


def test_plus_teacher_adds_its_log_ratio_to_each_trained_token() -> None:
    half, trained = torch.full((3,), 0.5, dtype=torch.float64), torch.tensor([True, True, False])
    old = torch.tensor([-1.0, -1.0, float("nan")], dtype=torch.float64)
    teacher = torch.tensor([-0.8, -2.0, float("nan")], dtype=torch.float64)
    found = normalize.plus_teacher(half, old, teacher, trained, coefficient=0.3)
    assert found.tolist() == pytest.approx([0.56, 0.2, 0.5])
