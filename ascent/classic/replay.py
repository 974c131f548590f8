"""A replay buffer: a ring of single steps, sampled uniformly with replacement.

Axes: N steps, O observation entries. `ended` marks termination only, not a time limit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Steps(NamedTuple):
    """A sample of N steps."""

    observations_NO: NDArray[np.float32]
    actions_N: NDArray[np.int64]
    rewards_N: NDArray[np.float32]
    after_NO: NDArray[np.float32]
    ended_N: NDArray[np.float32]


class Replay:
    """At most `capacity` steps; new steps replace the oldest."""

    def __init__(self, capacity: int, width: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity}, but a replay buffer holds at least 1 step")
        self.capacity = capacity
        self.observations = np.zeros((capacity, width), np.float32)
        self.after = np.zeros((capacity, width), np.float32)
        self.actions = np.zeros(capacity, np.int64)
        self.rewards = np.zeros(capacity, np.float32)
        self.ended = np.zeros(capacity, np.float32)
        self.added = 0

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(
        self, observation_O: Any, action: int, reward: float, after_O: Any, ended: bool
    ) -> None:
        slot = self.added % self.capacity
        self.observations[slot] = observation_O
        self.after[slot] = after_O
        self.actions[slot] = action
        self.rewards[slot] = reward
        self.ended[slot] = ended
        self.added += 1

    def sample(self, count: int, rng: np.random.Generator) -> Steps:
        """`count` random steps."""
        if self.added == 0:
            raise ValueError("the replay buffer is empty; add steps before sampling")
        picked = rng.integers(len(self), size=count)
        return Steps(
            self.observations[picked],
            self.actions[picked],
            self.rewards[picked],
            self.after[picked],
            self.ended[picked],
        )
