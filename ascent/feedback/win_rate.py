"""Win rates with confidence intervals, raw and length-controlled.

An outcome is 1 where A's answer is preferred, 0 where B's is, 1/2 for a tie. The outcomes of one prompt are averaged,
and prompts are counted, because answers to one prompt are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

LEVEL = 0.95
STEPS = 100


class Interval(NamedTuple):
    value: float
    low: float
    high: float
    of: int  # number of prompts or choices


def combine_orders(forward: str, backward: str) -> str:
    """One outcome of both orders: a, b, tie, or inconsistent where the two orders disagree.

    `forward` is the verdict with A shown first, `backward` with B first.
    """
    first = {"first": "a", "second": "b"}.get(forward, "tie")
    second = {"first": "b", "second": "a"}.get(backward, "tie")
    return first if first == second else "inconsistent"


def wilson(wins: float, count: int, *, level: float = LEVEL) -> Interval:
    """Wilson's score interval. A tie counts as half a win, which makes it too wide, never too narrow.

    8 of 10 at 95%: .4902 to .9433. For 10 of 10 it is .7225 to 1, where bootstrapping gives no width.
    """
    if not 0 <= wins <= count or count < 1:
        raise ValueError(
            f"{wins} wins of {count}; there must be at least one comparison, and no more wins than those"
        )
    z2 = _z(level) ** 2
    share = wins / count
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = (
        math.sqrt(z2)
        * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
        / (1 + z2 / count)
    )
    return Interval(share, max(middle - half, 0.0), min(middle + half, 1.0), count)


def length_matched(
    outcomes: Sequence[float], longer: Sequence[float], *, level: float = LEVEL
) -> Interval:
    """The win rate that answers of equal length would have, by logistic regression on the difference of lengths.

    P(A preferred) = sigmoid(a + b x), x being how much longer A's answer is, divided by the root mean square of all
    differences; the result is sigmoid(a), at x = 0. One more observation, a tie at equal length, and a prior of
    standard deviation 1 on b keep both finite when one side wins everything. Where no lengths differ this is
    (wins + 1/2) / (count + 1). The interval is the normal one of a. (The idea of length-controlled AlpacaEval; Dubois
    et al., 2024.)
    """
    if len(outcomes) != len(longer) or not outcomes:
        raise ValueError(
            f"{len(outcomes)} outcomes and {len(longer)} lengths; give one of each for every prompt"
        )
    scale = math.sqrt(math.fsum(each**2 for each in longer) / len(longer)) or 1.0
    xs, ys = [*(each / scale for each in longer), 0.0], [*outcomes, 0.5]
    a = b = 0.0
    for _ in range(STEPS):
        (ga, gb), (haa, hab, hbb) = _derivatives(a, b, xs, ys)
        determinant = haa * hbb - hab**2
        step_a, step_b = (hbb * ga - hab * gb) / determinant, (haa * gb - hab * ga) / determinant
        shrink = 1 / max(
            1.0, abs(step_a), abs(step_b)
        )  # Newton overshoots where all outcomes are equal
        a, b = a + shrink * step_a, b + shrink * step_b
        if abs(step_a) + abs(step_b) < 1e-12:
            break
    _, (haa, hab, hbb) = _derivatives(a, b, xs, ys)
    error = math.sqrt(hbb / (haa * hbb - hab**2))
    low, high = (_sigmoid(a + sign * _z(level) * error) for sign in (-1, 1))
    return Interval(_sigmoid(a), low, high, len(outcomes))


def _derivatives(
    a: float, b: float, xs: Sequence[float], ys: Sequence[float]
) -> tuple[tuple[float, float], tuple[float, float, float]]:
    """Gradient of the log-posterior, and minus its second derivatives."""
    ps = [_sigmoid(a + b * x) for x in xs]
    errors, weights = [y - p for y, p in zip(ys, ps, strict=True)], [p * (1 - p) for p in ps]
    gradient = math.fsum(errors), math.fsum(e * x for e, x in zip(errors, xs, strict=True)) - b
    across = math.fsum(w * x for w, x in zip(weights, xs, strict=True))
    return gradient, (
        math.fsum(weights),
        across,
        math.fsum(w * x * x for w, x in zip(weights, xs, strict=True)) + 1.0,
    )


def _z(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level={level}, but a confidence level is between 0 and 1")
    return NormalDist().inv_cdf((1 + level) / 2)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
