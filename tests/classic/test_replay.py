"""The replay buffer: a ring of fixed size, uniform sampling, and what it stores."""

from __future__ import annotations

import numpy as np
import pytest

from ascent.classic.replay import Replay


def filled(capacity, steps):
    replay = Replay(capacity, 2)
    for i in range(steps):
        replay.add(np.array([i, i]), i % 3, float(i), np.array([i + 1, i + 1]), i % 2 == 0)
    return replay


def test_a_step_comes_back_as_it_went_in():
    steps = filled(4, 1).sample(3, np.random.default_rng(0))
    assert steps.observations_NO.tolist() == [[0, 0]] * 3
    assert steps.after_NO.tolist() == [[1, 1]] * 3
    assert steps.actions_N.tolist() == [0] * 3
    assert steps.rewards_N.tolist() == [0.0] * 3
    assert steps.ended_N.tolist() == [1.0] * 3


def test_the_ring_keeps_the_newest_and_its_size():
    replay = filled(capacity=5, steps=12)
    assert len(replay) == 5
    rewards = set(replay.sample(1000, np.random.default_rng(0)).rewards_N.tolist())
    assert rewards == {7.0, 8.0, 9.0, 10.0, 11.0}


def test_fields_of_a_step_stay_together():
    steps = filled(capacity=5, steps=12).sample(100, np.random.default_rng(0))
    i = steps.rewards_N
    assert (steps.observations_NO[:, 0] == i).all()
    assert (steps.after_NO[:, 1] == i + 1).all()
    assert (steps.actions_N == i % 3).all()
    assert (steps.ended_N == (i % 2 == 0)).all()


def test_a_half_full_memory_never_serves_empty_slots():
    replay = filled(capacity=100, steps=3)
    assert len(replay) == 3
    assert set(replay.sample(200, np.random.default_rng(0)).rewards_N.tolist()) == {0.0, 1.0, 2.0}


def test_sampling_is_uniform():
    counts = np.bincount(
        filled(10, 25).sample(20_000, np.random.default_rng(0)).rewards_N.astype(int) - 15
    )
    # 2,000 expected in each of ten slots; the standard deviation is sqrt(20000 * .1 * .9) = 42.4.
    assert np.abs(counts - 2000).max() < 5 * 42.4


def test_a_sample_is_a_copy():
    replay = filled(4, 4)
    replay.sample(4, np.random.default_rng(0)).observations_NO[:] = -1
    assert replay.observations.min() == 0


def test_errors():
    with pytest.raises(ValueError, match="capacity=0"):
        Replay(0, 2)
    with pytest.raises(ValueError, match="is empty"):
        Replay(3, 2).sample(1, np.random.default_rng(0))
