"""Dynamic programming: values by hand, Bellman's equations, Monte Carlo, and policies without a value."""

from __future__ import annotations

import numpy as np
import pytest

from ascent.classic.exact import Model, greedy_policy, optimal_values, policy_values
from ascent.classic.maze import Maze

BIG = """
S...#
.##..
...T.
#..#G
"""


def uniform(model):
    return np.full(model.rewards_SA.shape, 0.25)


def test_the_small_maze_by_hand():
    values = optimal_values(Maze().model(), gamma=0.9)
    # Three moves to the goal from the start, two from the next cell, one from the last; walls and endings are worth 0.
    assert values.v_S == pytest.approx([8.1, 9.0, 0, 0, 10.0, 0])
    # In the cell above the last: up stays (.9 * 9), right is the trap, down is best, left goes back (.9 * 8.1).
    assert values.q_SA[1] == pytest.approx([8.1, -10.0, 9.0, 7.29])
    assert values.a_SA[1] == pytest.approx([-0.9, -19.0, 0.0, -1.71])


def test_a_coin_in_a_corridor_by_hand():
    # Right or left with equal chance in S.G: V0 = .9 (V0 + V1) / 2 and V1 = (10 + .9 V0) / 2.
    model = Maze("S.G").model()
    policy_SA = np.tile([0, 0.5, 0, 0.5], (3, 1))
    v1 = 5 / (1 - 0.45 * 0.45 / 0.55)
    assert policy_values(model, policy_SA, gamma=0.9).v_S == pytest.approx(
        [0.45 * v1 / 0.55, v1, 0]
    )


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99])
def test_bellman_equations_hold(gamma):
    model = Maze(BIG, slip=0.2, step_reward=-0.1).model()
    rng = np.random.default_rng(0)
    policy_SA = rng.dirichlet(np.ones(4), size=len(model.terminal_S))
    alive = ~model.terminal_S
    values = policy_values(model, policy_SA, gamma=gamma)
    future = np.where(model.terminal_S, 0, values.v_S)
    assert values.q_SA[alive] == pytest.approx(
        (model.rewards_SA + gamma * model.next_SAN @ future)[alive]
    )
    assert values.v_S[alive] == pytest.approx((policy_SA * values.q_SA).sum(-1)[alive])
    assert (policy_SA * values.a_SA).sum(-1) == pytest.approx(0)
    best = optimal_values(model, gamma=gamma)
    assert best.q_SA.max(-1) == pytest.approx(best.v_S)
    assert (best.v_S >= values.v_S - 1e-9).all()


def test_the_greedy_policy_of_the_optimum_has_the_optimal_value():
    model = Maze(BIG, slip=0.2).model()
    best = optimal_values(model, gamma=0.95)
    assert policy_values(model, greedy_policy(best.q_SA), gamma=0.95).v_S == pytest.approx(
        best.v_S, abs=1e-9
    )


def test_values_agree_with_monte_carlo():
    env = Maze(slip=0.1, step_reward=-0.2)
    exact = policy_values(env.model(), uniform(env.model()), gamma=0.9).v_S[env.grid.start]
    rng, returns = np.random.default_rng(0), []
    for episode in range(3000):
        env.reset(seed=episode)
        total, weight, done = 0.0, 1.0, False
        while not done:
            _, reward, done, _, _ = env.step(int(rng.integers(4)))
            total, weight = total + weight * reward, weight * 0.9
        returns.append(total)
    error = np.std(returns) / np.sqrt(len(returns))
    assert abs(np.mean(returns) - exact) < 4 * error


def test_a_terminal_state_is_worth_nothing_whatever_its_rows_say():
    # State 1 is terminal, yet its row claims a reward of 7 for ever; entering it from state 0 pays 3.
    model = Model(
        np.array([[[0.0, 1.0]], [[0.0, 1.0]]]), np.array([[3.0], [7.0]]), np.array([False, True])
    )
    for values in (
        policy_values(model, np.ones((2, 1)), gamma=0.9),
        optimal_values(model, gamma=0.9),
    ):
        assert values.v_S == pytest.approx([3, 0]) and values.q_SA[:, 0] == pytest.approx([3, 0])
        assert values.a_SA == pytest.approx(0)


def test_greedy_shares_ties():
    assert greedy_policy(np.array([[1.0, 2.0, 2.0, 0.0]])) == pytest.approx(
        np.array([[0, 0.5, 0.5, 0]])
    )


def test_gamma_one_where_the_policy_ends():
    model = Maze().model()
    # Undiscounted, the random walk is worth 10 (chance of the goal - chance of the trap).
    values = policy_values(model, uniform(model), gamma=1.0)
    # h = P(goal): h0 = h1 (one way out); 4 h1 = h1 + h0 + h4; 4 h4 = h1 + 1 + 2 h4. So h1 = 1/3 and h4 = 2/3.
    assert values.v_S[[0, 1, 4]] == pytest.approx(
        [10 / 3 - 20 / 3, 10 / 3 - 20 / 3, 20 / 3 - 10 / 3]
    )
    assert optimal_values(model, gamma=1.0).v_S[[0, 1, 4]] == pytest.approx([10, 10, 10])


def test_a_policy_that_never_ends_has_no_undiscounted_value():
    model = Maze().model()
    stay = np.zeros((6, 4))
    stay[:, 0] = 1
    with pytest.raises(ValueError, match="never has to end"):
        policy_values(model, stay, gamma=1.0)
    assert policy_values(model, stay, gamma=0.9).v_S[0] == 0


def test_a_reward_for_ever_has_no_undiscounted_optimum():
    model = Maze(step_reward=1.0).model()
    with pytest.raises(ValueError, match="after 50 sweeps"):
        optimal_values(model, gamma=1.0, sweeps=50)


@pytest.mark.parametrize("gamma", [-0.1, 1.01, float("nan")])
def test_gamma_out_of_range(gamma):
    model = Maze().model()
    with pytest.raises(ValueError, match="a discount lies in"):
        optimal_values(model, gamma=gamma)


def test_a_policy_must_be_probabilities_of_the_right_shape():
    model = Maze().model()
    with pytest.raises(ValueError, match="shape"):
        policy_values(model, np.ones((2, 4)) / 4, gamma=0.9)
    with pytest.raises(ValueError, match="add up to 1"):
        policy_values(model, np.ones((6, 4)), gamma=0.9)


def test_a_model_must_fit_together():
    with pytest.raises(ValueError, match="do not fit"):
        Model(np.ones((2, 1, 3)), np.zeros((2, 1)), np.zeros(2, bool))
    with pytest.raises(ValueError, match="add up to 1"):
        Model(np.ones((2, 1, 2)), np.zeros((2, 1)), np.zeros(2, bool))
