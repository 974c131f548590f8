import numpy as np
import pytest

from ascent.classic.result import evaluate


def test_evaluation_does_not_depend_on_how_many_episodes_run_beside():
    class Lean:
        def act(self, observations, rng):
            return (observations[:, 2] > 0).astype(np.int64)

    assert evaluate(Lean(), "CartPole-v1", 5, 10)[:2] == evaluate(Lean(), "CartPole-v1", 2, 10)


def test_a_sampled_evaluation_explores_and_repeats_with_its_seed():
    class Coin:
        def act(self, observations, rng):
            return (
                np.zeros(len(observations), np.int64)
                if rng is None
                else rng.integers(0, 2, len(observations))
            )

    greedy = evaluate(Coin(), "CartPole-v1", 4, 0)
    first, again = (evaluate(Coin(), "CartPole-v1", 4, 0, greedy=False) for _ in range(2))
    assert first == again != greedy
    assert max(greedy) < 12


def test_box_actions_are_held_inside_their_bounds():
    class Wild:
        def act(self, observations, rng):
            return np.full((len(observations), 1), 1e6, np.float32)

    class Most:
        def act(self, observations, rng):
            return np.full((len(observations), 1), 2.0, np.float32)

    assert evaluate(Wild(), "Pendulum-v1", 1, 3) == evaluate(Most(), "Pendulum-v1", 1, 3)


def test_no_episodes_no_mean():
    with pytest.raises(ValueError, match="at least 1 episode"):
        evaluate(None, "CartPole-v1", 0, 0)
