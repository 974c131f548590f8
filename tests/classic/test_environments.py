"""Opening environments: the errors say what to do, and nothing checks every step."""

from __future__ import annotations

import gymnasium
import pytest
from gymnasium.wrappers import PassiveEnvChecker

from ascent.classic.environments import discrete_actions, open_env


def test_an_environment_opens_with_its_options_and_without_the_checker():
    env = open_env("ascent/Maze-v0", {"slip": 0.25})
    assert env.unwrapped.slip == 0.25
    while isinstance(env, gymnasium.Wrapper):
        assert not isinstance(env, PassiveEnvChecker)
        env = env.env


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("CartPol-v1", "did you mean CartPole-v1"),
        ("CartPole-v99", "'CartPole-v99'; did you mean"),
        ("nothing/like-this-v0", "no environment is called 'nothing/like-this-v0'"),
        ("!", "for example CartPole-v1"),
    ],
)
def test_unknown_names(name, words):
    with pytest.raises(ValueError, match=words):
        open_env(name)


def test_unknown_options():
    with pytest.raises(ValueError, match=r"does not take the options \['color'\]"):
        open_env("ascent/Maze-v0", {"color": "red"})


def test_a_bad_map_keeps_its_own_message():
    with pytest.raises(ValueError, match="no goal"):
        open_env("ascent/Maze-v0", {"text": "S.."})


def test_actions_must_be_listable():
    assert discrete_actions(gymnasium.spaces.Discrete(3)) == 3
    for space in (gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(3, start=1)):
        with pytest.raises(ValueError, match="lists all actions"):
            discrete_actions(space)
