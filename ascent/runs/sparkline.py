"""A curve in one line of text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """At most `width` blocks, each the mean of its part of the values, scaled from the smallest to the largest mean.

    A part without a finite value is blank. Equal means are drawn in the middle.
    """
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count + 1)] if count else []
    means = [_mean(values[start:end]) for start, end in itertools.pairwise(edges)]
    known = [mean for mean in means if mean is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    return "".join(" " if mean is None else _block(mean, low, high) for mean in means)


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else None


def _block(value: float, low: float, high: float) -> str:
    if high <= low:
        return BLOCKS[len(BLOCKS) // 2]
    return BLOCKS[min(int((value - low) / (high - low) * len(BLOCKS)), len(BLOCKS) - 1)]
