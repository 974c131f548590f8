"""The score at the end of a run, with an interval, from the part that is known.

The curve is a sigmoid in log-compute, as ScaleRL fits it (Khatri et al., 2025): R(c) = R0 + (A - R0) / (1 + (M / c)^B)
with the score R0 at the start, the asymptote A, the slope B and the compute M at half way. With a few noisy points many
sigmoids fit; all those of a grid are kept, weighted by how well they fit (the noise is unknown and integrated out), and
the interval is the range of their values at the end. Where that range is too wide to be of use, nothing is promised.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LEVEL = 0.8
MIN_POINTS, MAX_POINTS = 6, 32
MIN_SHARE = 0.2  # of the run must be over
WIDEST = 0.6  # of the score's range; a wider interval says nothing
SLOPES = (0.7, 1.0, 1.3, 1.7, 2.2, 3.0, 4.0, 5.5)
MIDPOINTS, ASYMPTOTES, STARTS = 28, 21, 3
PRIOR_NOISE = 0.03  # of the score's range, weighing as much as two points
WIDENING = 0.9  # set on the runs that rules were written on (bench/diagnosis.py), of which 83% hold the end

Point = tuple[float, float]


@dataclass(frozen=True)
class ScoreForecast:
    """The score expected at the end, and the interval that holds it with probability `level`.

    All three are None where it cannot be known yet; `why` says why.
    """

    value: float | None
    low: float | None
    high: float | None
    level: float = LEVEL
    why: str = ""

    def text(self) -> str:
        if self.value is None:
            return f"cannot be known yet: {self.why}"
        return f"{self.value:.3g}, with {self.level:.0%} probability between {self.low:.3g} and {self.high:.3g}"


def fit_score(
    curve: Sequence[Point], end: float, *, bounds: tuple[float, float] = (0.0, 1.0)
) -> ScoreForecast:
    """The score at compute `end` from (compute, score) points; compute may be steps, tokens or FLOPs.

    At least six points are needed, and a fifth of the run. The score lies between `bounds`.
    """
    points = _thinned([(c, value) for c, value in curve if c > 0 and math.isfinite(value)])
    if len(points) < MIN_POINTS:
        return _unknown(f"{len(points)} scores, fewer than {MIN_POINTS}")
    known = points[-1][0]
    if known < MIN_SHARE * end:
        return _unknown(f"{known / end:.0%} of the run is over, less than {MIN_SHARE:.0%}")
    if known >= end:
        return _unknown("the run is over")
    scale = bounds[1] - bounds[0]
    noise = max(_noise([value for _, value in points]), 1e-3 * scale)
    weighted = list(_weigh(points, end, bounds, noise))
    largest = max(weight for weight, _ in weighted)
    kept = sorted(
        (value, math.exp(weight - largest)) for weight, value in weighted if weight > largest - 30
    )
    low, value, high = (_quantile(kept, share) for share in ((1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2))
    rest = max(
        noise / 2, PRIOR_NOISE * scale
    )  # a score is a share of a few answers, and the grid has gaps
    low, high = value - WIDENING * (value - low) - rest, value + WIDENING * (high - value) + rest
    low, high = max(low, bounds[0]), min(high, bounds[1])
    if high - low > WIDEST * scale:
        return _unknown(f"between {low:.2g} and {high:.2g} everything is possible")
    return ScoreForecast(value, low, high)


def _unknown(why: str) -> ScoreForecast:
    return ScoreForecast(None, None, None, why=why)


def _thinned(points: Sequence[Point]) -> list[Point]:
    """At most MAX_POINTS, means of neighbors."""
    size = math.ceil(len(points) / MAX_POINTS)
    chunks = (
        [points[place : place + size] for place in range(0, len(points), size)] if points else []
    )
    return [
        (statistics.fmean(c for c, _ in each), statistics.fmean(v for _, v in each))
        for each in chunks
    ]


def _noise(values: Sequence[float]) -> float:
    """The standard deviation of a point around its curve, from differences of neighbors."""
    steps = [b - a for a, b in itertools.pairwise(values)]
    return math.sqrt(statistics.fmean(each * each for each in steps) / 2)


def _weigh(
    points: Sequence[Point], end: float, bounds: tuple[float, float], noise: float
) -> Iterator[Point]:
    """(log weight, score at the end) of every sigmoid of the grid."""
    count, scale = len(points), bounds[1] - bounds[0]
    start = statistics.fmean(value for _, value in points[:2])
    starts = [start + noise * (2 * place / (STARTS - 1) - 1) for place in range(STARTS)]
    asymptotes = [bounds[0] + scale * place / (ASYMPTOTES - 1) for place in range(ASYMPTOTES)]
    first, last = math.log(points[0][0]), math.log(4 * end)
    prior = 2 * (PRIOR_NOISE * scale) ** 2
    for slope in SLOPES:
        for place in range(MIDPOINTS):
            middle = math.exp(first + (last - first) * place / (MIDPOINTS - 1))
            shape = [1 / (1 + (middle / c) ** slope) for c, _ in points]
            at_end = 1 / (1 + (middle / end) ** slope)
            for begin in starts:
                for top in asymptotes:
                    errors = sum(
                        (begin + (top - begin) * s - v) ** 2
                        for s, (_, v) in zip(shape, points, strict=True)
                    )
                    yield (
                        -(count + 2) / 2 * math.log(errors + prior),
                        begin + (top - begin) * at_end,
                    )


def _quantile(values: Sequence[Point], share: float) -> float:
    """Of sorted (value, weight) pairs."""
    total = math.fsum(weight for _, weight in values)
    reached = 0.0
    for value, weight in values:
        reached += weight
        if reached >= share * total:
            return value
    return values[-1][0]
