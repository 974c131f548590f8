"""Opening an environment by name, with an error that says what to do when that fails."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import gymnasium


def open_env(env_id: str, options: Mapping[str, Any] | None = None) -> gymnasium.Env[Any, Any]:
    """`gymnasium.make` without the per-step checker; unknown names and options become a ValueError."""
    try:
        return gymnasium.make(env_id, disable_env_checker=True, **(options or {}))
    except gymnasium.error.DependencyNotInstalled as error:
        raise ValueError(f"{env_id} needs a package that is not installed: {error}") from error
    except gymnasium.error.Error as error:  # unregistered, deprecated or misspelt
        close = difflib.get_close_matches(env_id, list(gymnasium.registry), n=3, cutoff=0.4)
        fix = (
            f"did you mean {' or '.join(close)}?"
            if close
            else "for example CartPole-v1 or ascent/Maze-v0"
        )
        raise ValueError(f"no environment is called {env_id!r}; {fix}") from error
    except TypeError as error:
        raise ValueError(
            f"{env_id} does not take the options {sorted(options or {})}: {error}"
        ) from error


def discrete_actions(space: gymnasium.Space[Any]) -> int:
    """The number of actions, for methods that list them all."""
    if not isinstance(space, gymnasium.spaces.Discrete) or space.start != 0:
        raise ValueError(
            f"actions are {space}, but this method lists all actions; use an environment with "
            "Discrete actions from 0, for example CartPole-v1, or a policy-gradient method"
        )
    return int(space.n)
