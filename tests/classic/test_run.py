import dataclasses
import math

import pytest
import torch

from ascent.classic import dqn, policy_gradient, ppo, trpo
from ascent.classic.run import Settings, explained_variance, recent_return, start

SMALL = Settings(envs=2, hidden=(4,), gamma=0.9)


def test_explained_variance_of_a_perfect_a_constant_and_a_misleading_critic():
    targets = torch.tensor([1.0, 2.0, 3.0, 6.0])
    assert explained_variance(targets, targets) == 1
    assert explained_variance(torch.full((4,), 9.0), targets) == pytest.approx(0, abs=1e-6)
    assert explained_variance(-targets, targets) == pytest.approx(-3)
    assert math.isnan(explained_variance(targets, torch.ones(4)))


def test_recent_return_looks_at_the_last_episodes_only():
    run = start("CartPole-v1", SMALL, seed=0)
    assert math.isnan(recent_return(run.environments))
    run.environments.returns += [1.0, 2.0, 6.0]
    assert recent_return(run.environments, episodes=2) == 4


def test_one_seed_makes_every_part_of_a_run():
    def weights(seed):
        run = start("CartPole-v1", SMALL, seed=seed)
        return [*run.policy.parameters(), *run.critic.parameters()], [
            list(x) for x in run.environments.now
        ]

    (first, now), (again, now_again), (other, now_other) = weights(5), weights(5), weights(6)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True)) and now == now_again
    assert not torch.equal(first[0], other[0]) and now != now_other


def test_scaling_is_for_vectors_and_leaves_one_hot_rows_alone():
    assert start("CartPole-v1", SMALL, seed=0, scale=True).scale is not None
    maze = start("ascent/Maze-v0", SMALL, seed=0, scale=True)
    assert maze.scale is None and maze.environments.gamma == 0.9


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"steps": 0}, "steps=0, but it must be a whole number, at least 1"),
        ({"lam": 1.5}, "lam=1.5, but it must be between 0 and 1"),
        ({"hold": -1}, "hold=-1, but it must be a whole number, at least 0"),
        ({"hold": 4.0}, "hold=4.0"),
        ({"hidden": (0,)}, "one width >= 1"),
    ],
)
def test_settings_that_every_method_has_are_checked_once_for_all(wrong, words):
    for kind in (Settings, policy_gradient.Settings, trpo.Settings, ppo.Settings):
        with pytest.raises(ValueError, match=words):
            kind(**wrong)


def test_state_dependent_noise_is_refused_where_actions_are_discrete():
    with pytest.raises(ValueError, match="hold=4 on the actions Discrete"):
        start("CartPole-v1", dataclasses.replace(SMALL, hold=4), seed=0)


@pytest.mark.parametrize("method", (ppo, dqn), ids=("ppo", "dqn"))
def test_what_the_process_computed_with_before_changes_no_bit(method, monkeypatch):
    """A language model switches oneDNN off; on ARM its float32 products have other bits than those of the BLAS."""
    settings = (
        ppo.Settings(steps=600, length=64) if method is ppo else dqn.Settings(steps=600, warmup=100)
    )
    runs = []
    for enabled in (True, False):
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", enabled)
        runs.append(method.train("CartPole-v1", settings, seed=3).history)
    assert runs[0] == runs[1]
