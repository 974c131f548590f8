"""The metrics of a run as columns, read incrementally from metrics.jsonl.

`refresh` reads what is new, for a limited time. While a long file is still being read, the curves are those of lines
spread over the whole file, so a run of any length opens at once.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from ascent.runs import seek
from ascent.runs.folder import METRICS
from ascent.runs.jsonl import numbers
from ascent.view.files import RunFiles

SPREAD = 1500  # lines that stand for a long file until it is read
LONG = 8 << 20  # bytes
AXES = ("step", "time", "tokens")
TOKENS = "tokens/run"

Numbers = np.ndarray[tuple[int], np.dtype[np.float64]]


class Curve(NamedTuple):
    """The finite values of a metric over an axis, and how many were not finite."""

    x: Numbers
    y: Numbers
    non_finite: int


class Columns:
    """Steps, times and tokens by line, and for every metric the lines that have it with its values."""

    def __init__(self) -> None:
        self.steps, self.times, self.tokens = array("d"), array("d"), array("d")
        self.metrics: dict[str, tuple[array[int], array[float]]] = {}
        self.unreadable = 0

    def add(self, line: bytes) -> None:
        values = seek.parse(line) or {}
        if not all(type(each) is float for each in values.values()):
            values = numbers(
                values
            )  # whole numbers, words that stand for NaN, and what is no number
        if "step" not in values:
            self.unreadable += 1
            return
        row, trained = len(self.steps), values.get(TOKENS, 0.0)
        self.steps.append(values.pop("step"))
        self.times.append(values.pop("timestamp", math.nan))
        self.tokens.append(
            (self.tokens[-1] if row else 0.0) + (trained if math.isfinite(trained) else 0.0)
        )
        for name, value in values.items():
            column = self.metrics.get(name)
            if column is None:
                column = self.metrics[name] = array("q"), array("d")
            column[0].append(row)
            column[1].append(value)

    def curve(self, name: str, axis: str = "step") -> Curve:
        rows, values = self.metrics.get(name, (array("q"), array("d")))
        index, y = np.array(rows, np.int64), np.array(values, np.float64)
        x = self._axis(axis)[index] if len(index) else y
        finite = np.isfinite(y) & np.isfinite(x)
        return Curve(x[finite], y[finite], int(np.sum(~np.isfinite(y))))

    def _axis(self, axis: str) -> Numbers:
        if axis == "tokens":
            return np.array(self.tokens)
        times = np.array(self.times)
        if axis == "time":
            known = times[np.isfinite(times)]
            return times - (known[0] if len(known) else 0.0)
        return np.array(self.steps)

    def last(self, name: str) -> float | None:
        column = self.metrics.get(name)
        return column[1][-1] if column else None


class MetricLog:
    """Follows metrics.jsonl. A file that was replaced, as on resume, is read again from its start."""

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._reset(0)

    def _reset(self, inode: int) -> None:
        self._inode, self._offset, self.total = inode, 0, 0
        self._all, self._spread = Columns(), Columns()

    @property
    def columns(self) -> Columns:
        return self._spread if self._spread.steps and not self.complete else self._all

    @property
    def complete(self) -> bool:
        return self._offset >= self.total

    @property
    def revision(self) -> str:
        """Changes with every line that was read."""
        return f"{self._inode}.{self._offset}"

    @property
    def share(self) -> float:
        """Of the file that was read, from 0 to 1."""
        return self._offset / self.total if self.total else 1.0

    def refresh(self, seconds: float = 0.15) -> None:
        """Read new lines, for about so long; of a long file first a few, and only those."""
        with self._files.open(METRICS) as file:
            inode = 0 if file is None else self._files.signature(METRICS)[0][0]
            if inode != self._inode or (file is not None and seek.size_of(file) < self._offset):
                self._reset(inode)
            if file is None:
                return
            self.total = seek.last_line_end(file)
            if self.total - self._offset > LONG and not self._spread.steps:
                self._spread = _read_spread(file)
                return
            deadline = time.monotonic() + seconds
            while self._offset < self.total and time.monotonic() < deadline:
                found = seek.read_lines(file, self._offset, 1 << 18)
                for line in found.lines:
                    self._all.add(line)
                self._offset = found.end


def _read_spread(file: BinaryIO) -> Columns:
    """Columns of some lines of a long file. Tokens are estimated: they add up over all lines."""
    found = Columns()
    for line in seek.spread_lines(file, SPREAD):
        found.add(line)
    steps = found.steps
    scale = max((steps[-1] - steps[0] + 1) / len(steps), 1.0) if steps else 1.0
    found.tokens = array("d", (each * scale for each in found.tokens))
    return found


def thin(curve: Curve, points: int) -> Curve:
    """About `points` of a curve that has more: lowest and highest value of every stretch, so that no spike is lost."""
    count = len(curve.y)
    if count <= points:
        return curve
    stretch = math.ceil(count / max(points // 2, 1))
    padded = np.concatenate([curve.y, np.full(-count % stretch, curve.y[-1])]).reshape(-1, stretch)
    base = np.arange(len(padded)) * stretch
    kept = np.concatenate([[0, count - 1], base + padded.argmin(1), base + padded.argmax(1)])
    index = np.unique(np.minimum(kept, count - 1))
    return Curve(curve.x[index], curve.y[index], curve.non_finite)


def smooth(curve: Curve, window: int) -> Curve:
    """The mean over `window` neighboring values, fewer at both ends."""
    count = len(curve.y)
    if window <= 1 or count == 0:
        return curve
    sums = np.concatenate([[0.0], np.cumsum(curve.y)])
    place, half = np.arange(count), window // 2
    low, high = np.maximum(place - half, 0), np.minimum(place + half + 1, count)
    return Curve(curve.x, (sums[high] - sums[low]) / (high - low), curve.non_finite)


def merge(curves: Sequence[Curve], steps: Sequence[Curve]) -> tuple[Curve, Numbers, Numbers]:
    """The mean of several runs at the steps that all of them have, with the lowest and the highest value.

    `steps` are the same curves over steps; `curves` may be over another axis, which is averaged.
    """
    shared = steps[0].x
    for each in steps[1:]:
        shared = np.intersect1d(shared, each.x)
    places = [np.searchsorted(each.x, shared) for each in steps]
    y = np.stack([each.y[place] for each, place in zip(steps, places, strict=True)])
    x = np.stack([each.x[place] for each, place in zip(curves, places, strict=True)]).mean(0)
    return Curve(x, y.mean(0), sum(each.non_finite for each in curves)), y.min(0), y.max(0)
