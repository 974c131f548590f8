"""KL controllers by hand."""

from __future__ import annotations

import pytest

from ascent.losses import kl_controllers


def test_golden_numbers_g13() -> None:
    assert kl_controllers.ziegler_sequence(0.2, 9.0, 64) == pytest.approx(0.200256)
    assert kl_controllers.ziegler_sequence(0.2, 6.6, 64) == pytest.approx(0.200128)


def test_a_negative_measured_kl_counts_as_far_below_target() -> None:
    assert kl_controllers.ziegler_sequence(0.2, -1.0, 64) == pytest.approx(
        0.2 * (1 - 0.2 * 64 / 10_000)
    )


def test_the_unit_is_in_the_name() -> None:
    assert kl_controllers.ziegler_token(0.2, 0.15, 64) == pytest.approx(0.200256)
    with pytest.raises(ValueError, match=r"target_per_token=0.*above 0"):
        kl_controllers.ziegler_token(0.2, 0.15, 64, target_per_token=0)


def test_ppo_penalty_doubles_halves_and_stays_in_bounds() -> None:
    assert kl_controllers.ppo_penalty(1.0, 0.02) == 2.0
    assert kl_controllers.ppo_penalty(1.0, 0.001) == 0.5
    assert kl_controllers.ppo_penalty(1.0, 0.01) == 1.0
    assert kl_controllers.ppo_penalty(1e6, 1.0) == 1e6
    assert kl_controllers.ppo_penalty(1e-6, 0.0) == 1e-6
    assert kl_controllers.fixed(0.3) == 0.3
