"""Progress in the terminal: one line a step at a rate that can be read, and below them a live bar.

Where the stream is no terminal the same lines are plain text, without the bar, the colors and the small curve.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from ascent.metrics import EVAL, labels
from ascent.runs.sparkline import sparkline

# Shown in this order, where logged, under these words.
HELDOUT = ("loss/total", "reward/mean", "reward/correct", "preference/accuracy", "steps/accuracy")
SHOWN = {**labels(), **{EVAL + name: f"held-out {labels()[name]}" for name in HELDOUT}}
QUIET = ("completion/truncated_frac", "optim/skipped")  # shown where they are not 0
SAME = {"reward/correct": "reward/mean", "eval/reward/correct": "eval/reward/mean"}  # left out where equal
MAIN = ("reward/correct", "reward/mean", "loss/total")  # the first that is logged is the small curve
SMOOTHING = 0.9
SECONDS_BETWEEN_LINES = 0.5


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
    """A Tracker for people. `done` is the step a resumed run starts from, `history` its metrics until then."""

    def __init__(
        self,
        total: int,
        *,
        done: int = 0,
        history: Iterable[Mapping[str, float]] = (),
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._stream, self._clock = total, sys.stderr if stream is None else stream, clock
        self._pace = Pace(done, clock)
        self._printed: float | None = None
        self._curve: list[float] = []
        for metrics in history:
            self._remember(metrics)
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
        self._pace.tick(step, metrics.get("tokens/run"))
        self._remember(metrics)
        if self._bar is not None:
            small = f"{sparkline(self._curve)}  " if self._curve else ""
            self._bar.update(self._task, completed=step, description=f"{small}{self._pace.left(self._total)} left")
        if self._due(step, metrics):
            self._print(f"step {step}/{self._total}  {self.words(metrics)}")

    def note(self, text: str) -> None:
        """A warning, above the bar."""
        self._print(text, "yellow")

    def words(self, metrics: Mapping[str, float]) -> str:
        """The shown metrics, tokens/s and time left, as one line."""
        shown = [
            f"{word} {metrics[name]:.4g}"
            for name, word in SHOWN.items()
            if name in metrics
            and not (name in QUIET and metrics[name] == 0)
            and not (name in SAME and metrics[name] == metrics.get(SAME[name]))
        ]
        speed = self._pace.tokens_per_second
        pace = [] if speed is None else [f"{speed:,.0f} tokens/s"]
        small = [sparkline(self._curve)] if self._curve and self._bar is not None else []
        return "  ".join([*small, *shown, *pace, f"{self._pace.left(self._total)} left"])

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _remember(self, metrics: Mapping[str, float]) -> None:
        main = next((metrics[name] for name in MAIN if name in metrics), None)
        if main is not None:
            self._curve.append(main)

    def _due(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Lines may be left out where steps are fast, never the first, the last, or one with an evaluation."""
        now = self._clock()
        told = step == self._total or any(name.startswith("eval/") for name in metrics)
        if not told and self._printed is not None and now - self._printed < SECONDS_BETWEEN_LINES:
            return False
        self._printed = now
        return True

    def _print(self, text: str, style: str = "") -> None:
        if self._bar is not None:
            self._bar.console.print(Text(text, style=style))
        else:
            print(text, file=self._stream, flush=True)


def _smoothed(before: float | None, now: float) -> float:
    return now if before is None else SMOOTHING * before + (1 - SMOOTHING) * now
