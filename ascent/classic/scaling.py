"""Running means and variances of observations and returns, merged batch by batch (Chan et al., 1979)."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Moments:
    """Mean and variance of everything seen so far, entry by entry, in float64."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0.0
        self.mean = np.zeros(shape)
        self.variance = np.ones(shape)

    def update(self, batch: Array) -> None:
        """Merge a batch (first axis: samples). The first batch replaces the initial mean 0 and variance 1."""
        rows, mean, variance = len(batch), batch.mean(0, dtype=np.float64), batch.var(0, dtype=np.float64)
        total = self.count + rows
        off = mean - self.mean
        spread = self.variance * self.count + variance * rows + off**2 * (self.count * rows / total)
        self.mean = self.mean + off * (rows / total)
        self.variance = spread / total
        self.count = total

    @property
    def std(self) -> Array:
        """Standard deviation; entries that never varied count as 1, so that dividing by it leaves them alone."""
        return np.sqrt(np.where(self.variance < 1e-8, 1.0, self.variance))
