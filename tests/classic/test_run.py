import math

import pytest
import torch

from ascent.classic.run import explained_variance, recent_return, start


def test_explained_variance_of_a_perfect_a_constant_and_a_misleading_critic():
    targets = torch.tensor([1.0, 2.0, 3.0, 6.0])
    assert explained_variance(targets, targets) == 1
    assert explained_variance(torch.full((4,), 9.0), targets) == pytest.approx(0, abs=1e-6)
    assert explained_variance(-targets, targets) == pytest.approx(-3)
    assert math.isnan(explained_variance(targets, torch.ones(4)))


def test_recent_return_looks_at_the_last_episodes_only():
    run = start("CartPole-v1", envs=1, seed=0, hidden=(4,), scale=False, gamma=0.9)
    assert math.isnan(recent_return(run.environments))
    run.environments.returns += [1.0, 2.0, 6.0]
    assert recent_return(run.environments, episodes=2) == 4


def test_one_seed_makes_every_part_of_a_run():
    def weights(seed):
        run = start("CartPole-v1", envs=2, seed=seed, hidden=(4,), scale=False, gamma=0.9)
        return [*run.policy.parameters(), *run.critic.parameters()], [list(x) for x in run.environments.now]

    (first, now), (again, now_again), (other, now_other) = weights(5), weights(5), weights(6)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True)) and now == now_again
    assert not torch.equal(first[0], other[0]) and now != now_other


def test_scaling_is_for_vectors_and_leaves_one_hot_rows_alone():
    assert start("CartPole-v1", envs=1, seed=0, hidden=(4,), scale=True, gamma=0.9).scale is not None
    maze = start("ascent/Maze-v0", envs=1, seed=0, hidden=(4,), scale=True, gamma=0.9)
    assert maze.scale is None and maze.environments.gamma == 0.9
