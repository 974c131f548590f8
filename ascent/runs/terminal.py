"""Progress in the terminal: one line per step, at a limited rate, and a live progress bar.

A stream that is not a terminal gets the same lines as plain text, without bar, colors and sparkline.
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

# Metrics that are shown for held-out data too.
HELDOUT = ("loss/total", "reward/mean", "reward/correct", "preference/accuracy", "steps/accuracy")
SHOWN = {
    key: text
    for name, label in labels().items()
    for key, text in ((name, label), (EVAL + name, f"held-out {label}"))
    if key == name or name in HELDOUT
}
HIDDEN_IF_ZERO = ("completion/truncated_frac", "optim/skipped")
HIDDEN_IF_EQUAL = {"reward/correct": "reward/mean", "eval/reward/correct": "eval/reward/mean"}
SPARKLINE = ("reward/correct", "reward/mean", "loss/total")  # the first one that is logged
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
        self._seconds = _smooth(self._seconds, elapsed / steps)
        if tokens is not None:
            self.tokens_per_second = _smooth(self.tokens_per_second, tokens * steps / elapsed)

    def time_left(self, total: int) -> str:
        """The time to the last step, as h:mm:ss."""
        if self._seconds is None:
            return "?"
        seconds = round(self._seconds * (total - self._step))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


class Terminal:
    """The tracker that prints. `done` is the last finished step of a resumed run, `history` its metrics."""

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
        self._last_print: float | None = None
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
            curve = f"{sparkline(self._curve)}  " if self._curve else ""
            self._bar.update(self._task, completed=step, description=f"{curve}{self._pace.time_left(self._total)} left")
        if self._should_print(step, metrics):
            self._print(f"step {step}/{self._total}  {self.format_line(metrics)}")

    def note(self, text: str) -> None:
        """Print a warning above the bar."""
        self._print(text, "yellow")

    def format_line(self, metrics: Mapping[str, float]) -> str:
        """The shown metrics, tokens/s and time left."""
        shown = [
            f"{label} {metrics[name]:.4g}"
            for name, label in SHOWN.items()
            if name in metrics
            and not (name in HIDDEN_IF_ZERO and metrics[name] == 0)
            and not (name in HIDDEN_IF_EQUAL and metrics[name] == metrics.get(HIDDEN_IF_EQUAL[name]))
        ]
        speed = self._pace.tokens_per_second
        pace = [] if speed is None else [f"{speed:,.0f} tokens/s"]
        curve = [sparkline(self._curve)] if self._curve and self._bar is not None else []
        return "  ".join([*curve, *shown, *pace, f"{self._pace.time_left(self._total)} left"])

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _remember(self, metrics: Mapping[str, float]) -> None:
        main = next((metrics[name] for name in SPARKLINE if name in metrics), None)
        if main is not None:
            self._curve.append(main)

    def _should_print(self, step: int, metrics: Mapping[str, float]) -> bool:
        """The first line, the last, those with an evaluation, and others at a limited rate."""
        now = self._clock()
        important = step == self._total or any(name.startswith(EVAL) for name in metrics)
        if not important and self._last_print is not None and now - self._last_print < SECONDS_BETWEEN_LINES:
            return False
        self._last_print = now
        return True

    def _print(self, text: str, style: str = "") -> None:
        if self._bar is not None:
            self._bar.console.print(Text(text, style=style))
        else:
            print(text, file=self._stream, flush=True)


def _smooth(previous: float | None, value: float) -> float:
    return value if previous is None else SMOOTHING * previous + (1 - SMOOTHING) * value
