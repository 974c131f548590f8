"""Exact values of a finite Markov decision process, by dynamic programming.

Axes: S states, A actions, N next states. A terminal state is worth 0: its reward was paid on entering it.

Worked example: a corridor of two cells and a goal worth 10, gamma .9. Walking right is worth V = [9, 10, 0]; the policy
that tosses a coin between right and left (left of the first cell is a wall) solves
V0 = .9 (V0 + V1) / 2 and V1 = (10 + .9 V0) / 2, so V = [6.475, 7.914, 0].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """P(next | state, action), the expected reward of each action, and the terminal states."""

    next_SAN: Floats
    rewards_SA: Floats
    terminal_S: NDArray[np.bool_]

    def __post_init__(self) -> None:
        states, actions = self.rewards_SA.shape
        if self.next_SAN.shape != (states, actions, states) or self.terminal_S.shape != (states,):
            raise ValueError(
                f"transitions {self.next_SAN.shape}, rewards {self.rewards_SA.shape} and terminals "
                f"{self.terminal_S.shape} do not fit; they must be (S, A, S), (S, A) and (S,)"
            )
        if self.next_SAN.min() < 0 or not np.allclose(self.next_SAN.sum(-1), 1):
            raise ValueError(
                "transition probabilities must be at least 0 and add up to 1 for every state and action"
            )


class Values(NamedTuple):
    """V, Q and A = Q - V of one policy; all 0 in terminal states."""

    v_S: Floats
    q_SA: Floats
    a_SA: Floats


def policy_values(model: Model, policy_SA: Floats, *, gamma: float) -> Values:
    """V, Q and A of any policy, from the linear system V = r + gamma P V. One row of `policy_SA` per state."""
    check_gamma(gamma)
    policy_SA = np.asarray(policy_SA, dtype=np.float64)
    if policy_SA.shape != model.rewards_SA.shape:
        raise ValueError(
            f"a policy of shape {policy_SA.shape}; this model needs {model.rewards_SA.shape}, (S, A)"
        )
    if policy_SA.min() < 0 or not np.allclose(policy_SA.sum(-1), 1):
        raise ValueError("every row of a policy must be probabilities that add up to 1")
    rewards_S = np.where(model.terminal_S, 0.0, (policy_SA * model.rewards_SA).sum(-1))
    future_SN = np.einsum("sa,san->sn", policy_SA, model.next_SAN)
    future_SN[model.terminal_S] = 0.0  # so their value is 0, and entering one has no future
    system_SN = np.eye(len(rewards_S)) - gamma * future_SN
    if np.linalg.cond(system_SN) > 1e12:
        raise ValueError(
            f"gamma={gamma} and this policy never has to end, so its value is not defined; use gamma below 1"
        )
    v_S = np.linalg.solve(system_SN, rewards_S)
    return _values(model, v_S, gamma)


def optimal_values(
    model: Model, *, gamma: float, tolerance: float = 1e-12, sweeps: int = 100_000
) -> Values:
    """V*, Q* and A* by value iteration from 0, until no state changes by more than `tolerance`."""
    check_gamma(gamma)
    v_S = np.zeros(len(model.terminal_S))
    for _ in range(sweeps):
        new_S = _values(model, v_S, gamma).q_SA.max(-1)
        change = np.abs(new_S - v_S).max()
        v_S = new_S
        # A contraction: what is still missing is at most change * gamma / (1 - gamma).
        if change <= tolerance * max(1 - gamma, 1e-3):
            return _values(model, v_S, gamma)
    raise ValueError(
        f"value iteration still moved by {change:g} after {sweeps} sweeps at gamma={gamma}; an optimal value may not "
        "exist here (a reward that can be collected for ever): use gamma below 1"
    )


def greedy_policy(q_SA: Floats, *, tolerance: float = 1e-9) -> Floats:
    """The policy that picks uniformly among the best actions of each state."""
    best_SA = q_SA >= q_SA.max(-1, keepdims=True) - tolerance
    return np.asarray(best_SA / best_SA.sum(-1, keepdims=True), dtype=np.float64)


def check_gamma(gamma: float) -> None:
    """Raise unless 0 <= gamma <= 1."""
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma={gamma}, but a discount lies in 0..1; for example 0.99")


def _values(model: Model, v_S: Floats, gamma: float) -> Values:
    q_SA = np.where(model.terminal_S[:, None], 0.0, model.rewards_SA + gamma * model.next_SAN @ v_S)
    return Values(v_S, q_SA, q_SA - v_S[:, None])
