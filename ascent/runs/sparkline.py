"""A curve in one line of text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """All values from first to last in at most `width` blocks, each the mean of its share; a gap has no finite value.

    The lowest block is the smallest mean and the highest the largest; where all are equal, all are in the middle.
    """
    count = min(width, len(values))
    edges = [place * len(values) // count for place in range(count + 1)] if count else []
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
