"""KL controllers: how a KL coefficient changes after each rollout batch.

Pure: the old coefficient and a measured KL in, the new coefficient out. The unit of the KL is part of every name,
because a target of 6 nats per sequence and one of .1 nats per token are both called "target" elsewhere.
"""

from __future__ import annotations

from typing import Annotated

from ascent.parameter_ranges import RARE, AboveOne, Count, Positive, checked


def fixed(coefficient: float) -> float:
    """Keep the coefficient."""
    return coefficient


@checked
def ziegler_sequence(
    coefficient: float,
    kl_per_sequence: float,
    sequences: int,
    *,
    target_per_sequence: Positive = 6.0,
    horizon: Count = 10_000,
) -> float:
    """Proportional control of the KL summed over a sequence, in nats (Ziegler et al., 2019).

    Coefficient .2, target 6, 64 sequences, horizon 10000: a KL of 9 gives .200256, one of 6.6 gives .200128.
    """
    return _proportional(coefficient, kl_per_sequence / target_per_sequence, sequences, horizon)


@checked
def ziegler_token(
    coefficient: float,
    kl_per_token: float,
    sequences: int,
    *,
    target_per_token: Positive = 0.1,
    horizon: Count = 10_000,
) -> float:
    """Proportional control of the mean KL of a token, in nats: the same rule in the other unit."""
    return _proportional(coefficient, kl_per_token / target_per_token, sequences, horizon)


@checked
def ppo_penalty(
    coefficient: float,
    kl_per_token: float,
    *,
    target_per_token: Positive = 0.01,
    tolerance: Annotated[AboveOne, RARE] = 1.5,
    factor: Annotated[AboveOne, RARE] = 2.0,
) -> float:
    """PPO-penalty's rule on KL to the OLD policy: halve below target / 1.5, double above 1.5 target."""
    if kl_per_token < target_per_token / tolerance:
        coefficient = coefficient / factor
    elif kl_per_token > target_per_token * tolerance:
        coefficient = coefficient * factor
    return min(max(coefficient, 1e-6), 1e6)


def _proportional(coefficient: float, relative: float, sequences: int, horizon: int) -> float:
    error = min(max(relative - 1, -0.2), 0.2)
    return coefficient * (1 + error * sequences / horizon)
