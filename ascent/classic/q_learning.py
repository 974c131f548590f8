"""Tabular Q-learning with epsilon-greedy exploration.

    Q(s, a) <- Q(s, a) + alpha (r + gamma (1 - d) max_a' Q(s', a') - Q(s, a))

d is 1 only where the episode TERMINATED; at a time limit the target bootstraps from the next state. The maximum makes
it off-policy: SARSA uses the next action instead. Watkins, 1989.

Worked example: alpha .5, gamma .9, Q(s, a) = 2, max Q(s') = 4, r = 1. The target is 4.6 and Q(s, a) becomes 3.3;
had the episode terminated, the target would be 1 and Q(s, a) would become 1.5.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ascent.classic.checks import check
from ascent.classic.environments import discrete_actions, open_env
from ascent.classic.result import Result

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """Every number of a run.

    Exploration falls linearly from `epsilon_start` to `epsilon_end` over the first `epsilon_share` of the steps. The
    learning rate of the n-th visit of a pair is `learning_rate` / n ** `decay`: 0 keeps it constant, which is enough
    where the environment is deterministic; noise needs 0.5 < decay <= 1 to average out.
    """

    steps: int = 20_000
    learning_rate: float = 0.1
    decay: float = 0.0
    gamma: float = 0.99
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_share: float = 0.5
    initial: float = 0.0

    def __post_init__(self) -> None:
        shares = (
            "gamma",
            "decay",
            "epsilon_start",
            "epsilon_end",
            "epsilon_share",
            "learning_rate",
        )
        check(self, counts=("steps",), positive=("learning_rate",), fractions=shares)


@dataclass(frozen=True)
class TablePolicy:
    """The Q-table and its greedy policy; ties are broken at random if `rng` is given."""

    q_SA: Floats

    def act(
        self, observations: np.ndarray[Any, Any], rng: np.random.Generator | None
    ) -> np.ndarray[Any, Any]:
        if rng is None:
            return self.q_SA[observations].argmax(-1)
        return np.array([best_action(self.q_SA[state], rng) for state in observations])

    def distance(self, exact_SA: Floats) -> float:
        """The largest difference from another Q-table, such as Q*."""
        return float(np.abs(self.q_SA - exact_SA).max())


def train(
    env_id: str,
    settings: Settings,
    *,
    seed: int,
    env_options: Mapping[str, Any] | None = None,
    log_every: int = 500,
) -> Result:
    """Learn a table. `history` holds the table itself as the list under "q", every `log_every` steps."""
    env = open_env(env_id, env_options)
    actions = discrete_actions(env.action_space)
    if not isinstance(env.observation_space, gymnasium.spaces.Discrete):
        raise ValueError(
            f"{env_id} observes {env.observation_space}, but a table needs numbered states; use ascent/Maze-v0, or dqn"
        )
    q_SA = np.full((int(env.observation_space.n), actions), settings.initial)
    visits_SA = np.zeros_like(q_SA, dtype=np.int64)
    rng = np.random.default_rng(seed)
    returns: list[float] = []
    ends: list[int] = []
    history: list[dict[str, Any]] = []
    began, total, (state, _) = time.perf_counter(), 0.0, env.reset(seed=seed)
    for step in range(settings.steps):
        epsilon = exploration(
            step,
            settings.steps,
            settings.epsilon_start,
            settings.epsilon_end,
            settings.epsilon_share,
        )
        action = (
            int(rng.integers(actions)) if rng.random() < epsilon else best_action(q_SA[state], rng)
        )
        after, reward, terminated, truncated, _ = env.step(action)
        visits_SA[state, action] += 1
        rate = settings.learning_rate / visits_SA[state, action] ** settings.decay
        update(
            q_SA, state, action, float(reward), after, terminated, rate=rate, gamma=settings.gamma
        )
        total, state = total + float(reward), after
        if (step + 1) % log_every == 0:
            history.append({"step": step + 1, "epsilon": epsilon, "q": q_SA.copy()})
        if terminated or truncated:
            returns.append(total)
            ends.append(step + 1)
            total, (state, _) = 0.0, env.reset()
    env.close()
    return Result(TablePolicy(q_SA), returns, ends, history, time.perf_counter() - began)


def update(
    q_SA: Floats,
    state: int,
    action: int,
    reward: float,
    after: int,
    terminated: bool,
    *,
    rate: float,
    gamma: float,
) -> float:
    """One step of Q-learning, in place; returns the temporal-difference error before the step."""
    target = reward if terminated else reward + gamma * float(q_SA[after].max())
    error = target - float(q_SA[state, action])
    q_SA[state, action] += rate * error
    return error


def best_action(q_A: Floats, rng: np.random.Generator) -> int:
    """A best action, at random among equals."""
    best = np.flatnonzero(q_A == q_A.max())
    return int(best[rng.integers(len(best))])


def exploration(step: int, steps: int, start: float, end: float, share: float) -> float:
    """Epsilon: linear from `start` to `end` over `share` of the run, then constant."""
    progress = min(1.0, step / (share * steps)) if share > 0 else 1.0
    return start + progress * (end - start)
