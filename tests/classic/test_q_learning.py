"""Q-learning: one update by hand, endings against time limits, ties, exploration, and convergence to Q*."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from ascent.classic import q_learning
from ascent.classic.exact import optimal_values
from ascent.classic.maze import Maze
from ascent.classic.q_learning import Settings
from ascent.classic.result import evaluate


class Corridor(gymnasium.Env):
    """One state, one action, reward 1 for ever: worth 1 / (1 - gamma), but only if time limits are no endings."""

    def __init__(self, ends: bool) -> None:
        self.observation_space = gymnasium.spaces.Discrete(1)
        self.action_space = gymnasium.spaces.Discrete(1)
        self.ends = ends

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, 1.0, self.ends, False, {}


@pytest.fixture
def corridor():
    gymnasium.register(id="ascent-test/Corridor-v0", entry_point=Corridor, max_episode_steps=3)
    yield "ascent-test/Corridor-v0"
    del gymnasium.registry["ascent-test/Corridor-v0"]


def test_one_update_by_hand():
    q_SA = np.array([[2.0, 0.0], [4.0, 1.0]])
    # Target 1 + .9 * 4 = 4.6; halfway from 2 is 3.3. The other entries do not move.
    assert q_learning.update(q_SA, 0, 0, 1.0, 1, False, rate=0.5, gamma=0.9) == pytest.approx(2.6)
    assert q_SA == pytest.approx(np.array([[3.3, 0.0], [4.0, 1.0]]))


def test_a_true_ending_has_no_future():
    q_SA = np.array([[2.0, 0.0], [4.0, 1.0]])
    q_learning.update(q_SA, 0, 0, 1.0, 1, True, rate=0.5, gamma=0.9)
    assert q_SA[0, 0] == pytest.approx(1.5)


def test_a_time_limit_is_no_ending(corridor):
    settings = Settings(steps=3000, learning_rate=0.5, gamma=0.9)
    cut = q_learning.train(corridor, settings, seed=0, env_options={"ends": False})
    assert len(cut.returns) == 1000 and set(cut.returns) == {3.0}
    assert cut.policy.q_SA[0, 0] == pytest.approx(10.0, abs=1e-6)
    ended = q_learning.train(corridor, settings, seed=0, env_options={"ends": True})
    assert ended.policy.q_SA[0, 0] == pytest.approx(1.0, abs=1e-6)


def test_ties_are_broken_evenly():
    rng = np.random.default_rng(0)
    counts = np.bincount(
        [q_learning.best_action(np.array([1.0, 0.0, 1.0, 1.0]), rng) for _ in range(3000)]
    )
    assert counts[1] == 0
    # 1,000 expected for each of the three; standard deviation sqrt(3000 * 1/3 * 2/3) = 25.8.
    assert np.abs(counts[[0, 2, 3]] - 1000).max() < 5 * 25.8


def test_exploration_is_a_line_then_flat():
    line = [q_learning.exploration(step, 100, 1.0, 0.2, 0.5) for step in (0, 25, 50, 99)]
    assert line == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert q_learning.exploration(0, 100, 1.0, 0.2, 0.0) == pytest.approx(0.2)


@pytest.mark.parametrize("seed", range(3))
def test_the_maze_is_learned_to_within_a_hundredth(seed):
    result = q_learning.train("ascent/Maze-v0", Settings(), seed=seed)
    model = Maze().model()
    exact = optimal_values(model, gamma=0.99)
    assert (
        np.abs(result.policy.q_SA - exact.q_SA).max() == result.policy.distance(exact.q_SA) < 1e-2
    )
    # The undiscounted optimum is the goal's 10.
    assert evaluate(result.policy, "ascent/Maze-v0", 3, seed=100) == [10.0, 10.0, 10.0]


def test_a_slippery_maze_needs_a_falling_learning_rate():
    options = {"slip": 0.2}
    exact = optimal_values(Maze(slip=0.2).model(), gamma=0.9)
    errors = {}
    for decay in (0.0, 0.8):
        settings = Settings(
            steps=50_000,
            learning_rate=0.5 if decay else 0.1,
            decay=decay,
            gamma=0.9,
            epsilon_end=1.0,
        )
        table = q_learning.train(
            "ascent/Maze-v0", settings, seed=0, env_options=options
        ).policy.q_SA
        errors[decay] = np.abs(table - exact.q_SA).max()
    assert errors[0.8] < 0.6
    assert errors[0.8] < errors[0.0] / 2


def test_the_same_seed_gives_the_same_table():
    first, second, other = (
        q_learning.train("ascent/Maze-v0", Settings(steps=500), seed=s) for s in (3, 3, 4)
    )
    assert (first.policy.q_SA == second.policy.q_SA).all()
    assert (first.policy.q_SA != other.policy.q_SA).any()


def test_history_and_episode_ends():
    result = q_learning.train("ascent/Maze-v0", Settings(steps=1000), seed=0, log_every=250)
    assert [row["step"] for row in result.history] == [250, 500, 750, 1000]
    assert len(result.returns) == len(result.steps) > 0
    assert result.steps == sorted(result.steps) and result.steps[-1] <= 1000


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"gamma": 1.1}, "gamma=1.1"),
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"epsilon_end": -0.1}, "epsilon_end=-0.1"),
        ({"steps": 0}, "steps=0"),
        ({"decay": 2.0}, "decay=2.0"),
    ],
)
def test_bad_settings(numbers, words):
    with pytest.raises(ValueError, match=words):
        Settings(**numbers)


def test_environments_that_do_not_fit():
    with pytest.raises(
        ValueError, match=r"no environment is called 'ascent/Maze-v7'; did you mean ascent/Maze-v0"
    ):
        q_learning.train("ascent/Maze-v7", Settings(), seed=0)
    with pytest.raises(ValueError, match="no environment is called 'Mase'"):
        q_learning.train("Mase", Settings(), seed=0)
    with pytest.raises(ValueError, match="a table needs numbered states"):
        q_learning.train("CartPole-v1", Settings(), seed=0)
    with pytest.raises(ValueError, match="lists all actions"):
        q_learning.train("Pendulum-v1", Settings(), seed=0)
    with pytest.raises(ValueError, match=r"does not take the options \['color'\]"):
        q_learning.train("ascent/Maze-v0", Settings(), seed=0, env_options={"color": 1})
