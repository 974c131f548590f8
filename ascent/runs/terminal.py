"""Progress in the terminal: a live bar where there is one, one plain line per step where there is not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

# Shown in this order, where logged.
SHOWN = ("loss", "reward", "accuracy", "kl_to_reference_k3", "grad_norm", "learning_rate")
SMOOTHING = 0.9


class Pace:
    """Seconds per step and tokens per second, smoothed over about ten steps."""

    def __init__(self, done: int, clock: Callable[[], float]) -> None:
        self._clock, self._step, self._at = clock, done, clock()
        self._seconds: float | None = None
        self.tokens_per_second: float | None = None

    def tick(self, step: int, tokens: float | None) -> None:
        now = self._clock()
        elapsed, steps = now - self._at, step - self._step
        self._step, self._at = step, now
        if steps <= 0 or elapsed <= 0:
            return
        self._seconds = _smoothed(self._seconds, elapsed / steps)
        if tokens is not None:
            self.tokens_per_second = _smoothed(self.tokens_per_second, tokens * steps / elapsed)

    def left(self, total: int) -> str:
        """The time to the last step, in words."""
        if self._seconds is None:
            return "?"
        seconds = round(self._seconds * (total - self._step))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


class Terminal:
    """A Tracker for people. `done` is the step a resumed run starts from."""

    def __init__(
        self,
        total: int,
        *,
        done: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._stream = total, sys.stderr if stream is None else stream
        self._pace = Pace(done, clock)
        self._bar: Progress | None = None
        if self._stream.isatty():
            self._bar = Progress(
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(bar_width=20),
                TextColumn("{task.description}", markup=False),
                console=Console(file=self._stream),
            )
            self._task = self._bar.add_task("", total=total, completed=done)
            self._bar.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._pace.tick(step, metrics.get("tokens"))
        words = self.words(metrics)
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=words)
        else:
            print(f"step {step}/{self._total}  {words}", file=self._stream, flush=True)

    def words(self, metrics: Mapping[str, float]) -> str:
        """The shown metrics, tokens/s and time left, as one line."""
        shown = [f"{name} {metrics[name]:.4g}" for name in SHOWN if name in metrics]
        shown += [f"skipped {metrics['skipped']:.4g}"] if metrics.get("skipped") else []
        evaluated = [f"{name} {value:.4g}" for name, value in metrics.items() if name.startswith("evaluate/")]
        speed = self._pace.tokens_per_second
        pace = [] if speed is None else [f"{speed:,.0f} tokens/s"]
        return "  ".join([*shown, *evaluated, *pace, f"{self._pace.left(self._total)} left"])

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _smoothed(before: float | None, now: float) -> float:
    return now if before is None else SMOOTHING * before + (1 - SMOOTHING) * now
