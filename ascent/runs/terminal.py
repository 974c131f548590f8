"""Progress in the terminal: one line per step, at a limited rate, and live bars for the run and for the step's phase.

A stream that is not a terminal (a pipe, a file, a notebook) gets the same lines as plain text, without bars, colors and
sparkline, and a line now and then while a phase goes on.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ascent import progress
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
BETWEEN = ("evaluate", "log", "save")  # between two steps; the last two of the step before
PHASES = ("sample", "score", "prepare", "update", "refresh", *BETWEEN)
SHORTEST_PHASE = 0.05  # of the step: shorter ones are not shown
SMOOTHING = 0.9
SECONDS_BETWEEN_LINES = 0.5
SECONDS_WITHOUT_LINE = 30.0  # of a stream without bars
BAR_WIDTH, PHASE_BAR_WIDTH = 20, 10


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


class _Bars(Progress):
    """The bar of the run, where it has one, and below it the bar of the phase that is going on."""

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.tasks:
            yield self.make_tasks_table(self.tasks)
        found = progress.current()
        if found is None:
            return
        name, phase = found
        table = Table.grid(padding=(0, 1))
        for width in (None, PHASE_BAR_WIDTH, None):
            table.add_column(no_wrap=True, width=width)
        table.add_row(
            Text(name), ProgressBar(phase.total or None, phase.progress()), Text(phase.describe())
        )
        yield table


class Display:
    """Lines, with bars below them on a terminal. Elsewhere a thread prints the phase when no line came for a while."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._clock = sys.stderr if stream is None else stream, clock
        self._printed_at, self._closed = clock(), threading.Event()
        self.bars: Progress | None = None
        if self._stream.isatty():
            self.bars = _Bars(
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(bar_width=BAR_WIDTH),
                TextColumn("{task.description}", markup=False),
                console=Console(file=self._stream),
                refresh_per_second=4,
            )
            self.bars.start()
        else:
            threading.Thread(target=self._watch, daemon=True, name="progress").start()

    @property
    def width(self) -> int | None:
        """Columns of a line; None where lines may be of any length."""
        if self.bars is not None:
            return self.bars.console.width
        columns = os.environ.get("COLUMNS", "")
        return int(columns) if columns.isdigit() and int(columns) else None

    def print(self, text: str, style: str = "") -> None:
        self._printed_at = self._clock()
        if self.bars is not None:
            self.bars.console.print(Text(text, style=style))
        else:
            print(text, file=self._stream, flush=True)

    def print_phase(self) -> None:
        """A line about the phase that is going on, if no line came for a while."""
        found = progress.current()
        if found is not None and self._clock() - self._printed_at >= SECONDS_WITHOUT_LINE:
            self.print(f"  {found[0]}  {found[1].describe()}")

    def close(self) -> None:
        self._closed.set()
        if self.bars is not None:
            self.bars.stop()

    def _watch(self) -> None:
        while not self._closed.wait(SECONDS_WITHOUT_LINE / 10):
            self.print_phase()


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
        self._total, self._clock = total, clock
        self._pace = Pace(done, clock)
        self._last_print: float | None = None
        self._curve: list[float] = []
        for metrics in history:
            self._remember(metrics)
        self._display = Display(stream, clock)
        if self._display.bars is not None:
            self._task = self._display.bars.add_task("", total=total, completed=done)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._pace.tick(step, metrics.get("tokens/run"))
        self._remember(metrics)
        if self._display.bars is not None:
            curve = f"{sparkline(self._curve)}  " if self._curve else ""
            left = f"{curve}{self._pace.time_left(self._total)} left"
            self._display.bars.update(self._task, completed=step, description=left)
        if self._should_print(step, metrics):
            self._display.print(
                fit([f"step {step}/{self._total}", *self._parts(metrics)], self._display.width)
            )

    def note(self, text: str) -> None:
        """Print a warning above the bars."""
        self._display.print(text, "yellow")

    def close(self) -> None:
        self._display.close()

    def _parts(self, metrics: Mapping[str, float]) -> list[str]:
        """The shown metrics, tokens/s, time by phase and time left."""
        shown = [
            f"{label} {metrics[name]:.4g}"
            for name, label in SHOWN.items()
            if name in metrics
            and not (name in HIDDEN_IF_ZERO and metrics[name] == 0)
            and not (
                name in HIDDEN_IF_EQUAL and metrics[name] == metrics.get(HIDDEN_IF_EQUAL[name])
            )
        ]
        speed = self._pace.tokens_per_second
        pace = [] if speed is None else [f"{speed:,.0f} tokens/s"]
        return [*shown, *pace, *phase_times(metrics), f"{self._pace.time_left(self._total)} left"]

    def _remember(self, metrics: Mapping[str, float]) -> None:
        main = next((metrics[name] for name in SPARKLINE if name in metrics), None)
        if main is not None:
            self._curve.append(main)

    def _should_print(self, step: int, metrics: Mapping[str, float]) -> bool:
        """The first line, the last, those with an evaluation, and others at a limited rate."""
        now = self._clock()
        important = step == self._total or any(name.startswith(EVAL) for name in metrics)
        if (
            not important
            and self._last_print is not None
            and now - self._last_print < SECONDS_BETWEEN_LINES
        ):
            return False
        self._last_print = now
        return True


def phase_times(metrics: Mapping[str, float]) -> list[str]:
    """Such as `2.1 s: sample 1.3` and `update 0.8`; nothing where no time was logged."""
    if "time/step" not in metrics:
        return []
    total = metrics["time/step"] + sum(metrics.get(f"time/{name}", 0.0) for name in BETWEEN)
    times = {name: metrics.get(f"time/{name}", 0.0) for name in PHASES}
    shown = [
        f"{name} {seconds:.2g}"
        for name, seconds in times.items()
        if seconds >= SHORTEST_PHASE * total
    ]
    return [f"{total:.2g} s: {shown[0]}", *shown[1:]] if shown else [f"{total:.2g} s"]


def fit(parts: Sequence[str], width: int | None) -> str:
    """The parts in one line, or in several indented ones where they do not fit; a part is never broken."""
    lines = [parts[0]]
    for part in parts[1:]:
        joined = f"{lines[-1]}  {part}"
        if width is None or len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(f"    {part}")
    return "\n".join(lines)


def _smooth(previous: float | None, value: float) -> float:
    return value if previous is None else SMOOTHING * previous + (1 - SMOOTHING) * value
