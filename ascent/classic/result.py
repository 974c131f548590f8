"""The result of a training run, and the evaluation of a policy on fresh episodes.

A policy has `act`: a batch of raw observations in, a batch of actions out; greedy if `rng` is None, else sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np

from ascent.classic.environments import open_env


class Policy(Protocol):
    def act(
        self, observations: np.ndarray[Any, Any], rng: np.random.Generator | None
    ) -> np.ndarray[Any, Any]:
        """One action per row of `observations`; greedy when `rng` is None, sampled otherwise."""
        ...


@dataclass(frozen=True)
class Result:
    """A finished run. `returns[i]` is the undiscounted return of the i-th finished episode, over at `steps[i]`."""

    policy: Policy
    returns: list[float]
    steps: list[int]
    history: list[dict[str, float]]
    seconds: float


def evaluate(
    policy: Policy, env_id: str, episodes: int, seed: int, *, greedy: bool = True
) -> list[float]:
    """Undiscounted returns of fresh episodes, one environment each; episode i starts from seed + i."""
    if episodes < 1:
        raise ValueError(
            f"evaluate: episodes={episodes}, but at least 1 episode is needed for a mean"
        )
    envs = [open_env(env_id) for _ in range(episodes)]
    observations = [env.reset(seed=seed + i)[0] for i, env in enumerate(envs)]
    bounds = (
        envs[0].action_space if isinstance(envs[0].action_space, gymnasium.spaces.Box) else None
    )
    rng = None if greedy else np.random.default_rng(seed)
    returns, alive = [0.0] * episodes, list(range(episodes))
    while alive:
        actions = policy.act(np.stack([np.asarray(observations[i]) for i in alive]), rng)
        actions = actions if bounds is None else np.clip(actions, bounds.low, bounds.high)
        still = []
        for i, action in zip(alive, actions, strict=True):
            observations[i], reward, terminated, truncated, _ = envs[i].step(action)
            returns[i] += float(reward)
            if not (terminated or truncated):
                still.append(i)
        alive = still
    for env in envs:
        env.close()
    return returns
