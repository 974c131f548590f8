"""The learning rate as a function of the optimizer step, counted from 0.

With peak 1, warm-up 3 and 7 steps in all, a linear schedule reads 1/4 2/4 3/4 | 4/4 3/4 2/4 1/4, and 0 once the run
is over: the first step moves the weights and so does the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


def constant(progress: float) -> float:
    return 1.0


def linear(progress: float) -> float:
    return 1.0 - progress


def cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


# After the warm-up: progress through the rest of the run (0 to 1) -> factor of the peak.
SHAPES: dict[str, Callable[[float], float]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
}


@dataclass(frozen=True)
class Schedule:
    """`total` counts optimizer steps, warm-up included; only `constant` does not need it."""

    peak: float
    shape: str = "constant"
    warmup: int = 0
    total: int | None = None

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(
                f"schedule {self.shape!r} does not exist; choose one of {', '.join(SHAPES)}"
            )
        if not (self.peak > 0 and math.isfinite(self.peak)):
            raise ValueError(f"learning rate {self.peak} must be a finite number above 0")
        if self.warmup < 0:
            raise ValueError(f"warm-up of {self.warmup} steps; it must be 0 or more")
        if self.total is None and self.shape != "constant":
            raise ValueError(
                f"schedule {self.shape!r} falls to 0 at the end of the run; give the total number of steps"
            )
        if self.total is not None and self.shape != "constant" and self.warmup >= self.total:
            raise ValueError(
                f"warm-up of {self.warmup} steps leaves nothing of {self.total} for schedule {self.shape!r}; "
                "shorten the warm-up or use schedule constant"
            )

    def at(self, step: int) -> float:
        """The learning rate of this step; the first is step 0."""
        if step < 0:
            raise ValueError(f"step {step}; steps are counted from 0")
        if step < self.warmup:
            return self.peak * (step + 1) / (self.warmup + 1)
        if self.total is None:
            return self.peak
        progress = (step - self.warmup) / max(1, self.total - self.warmup)
        return self.peak * SHAPES[self.shape](min(1.0, progress))
