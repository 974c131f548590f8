"""Progress inside a step. Whoever works says so with `phase`; the terminal reads `current`.

Counting is all that the work pays for: a display reads the numbers at its own pace, from another thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
_phases: list[Phase] = []  # the innermost last


@dataclass
class Phase:
    """`done` of `total` units, 0 for an unknown number. `tokens` is counted where tokens are the work."""

    name: str
    total: int = 0
    unit: str = ""
    count: Callable[[], int] | None = None  # for work that is done in other threads
    done: int = 0
    tokens: int = 0
    started: float = field(default_factory=time.perf_counter)

    def describe(self, now: float | None = None) -> str:
        """Such as `12/64 rollouts  3.1/s  1,234 tokens/s  4 s`."""
        seconds = (time.perf_counter() if now is None else now) - self.started
        done = self.progress()
        parts = [f"{done}/{self.total} {self.unit}"] if self.total else []
        if seconds > 0:
            parts += [f"{_number(done / seconds)}/s"] if done else []
            parts += [f"{_number(self.tokens / seconds)} tokens/s"] if self.tokens else []
        return "  ".join([*parts, f"{seconds:.0f} s"])

    def progress(self) -> int:
        return self.done if self.count is None else self.count()


@contextmanager
def phase(name: str, total: int = 0, unit: str = "", *, count: Callable[[], int] | None = None) -> Iterator[Phase]:
    """Work that takes a while, inside the phase that is already going on."""
    own = Phase(name, total, unit, count)
    _phases.append(own)
    try:
        yield own
    finally:
        _phases[:] = [each for each in _phases if each is not own]


def track(name: str, items: Sequence[T], unit: str) -> Iterator[T]:
    """The items, with a phase that counts those that are done."""
    with phase(name, len(items), unit) as own:
        for each in items:
            yield each
            own.done += 1


def add_tokens(count: int) -> None:
    """Count tokens of the innermost phase."""
    if _phases:
        _phases[-1].tokens += count


def current() -> tuple[str, Phase] | None:
    """The names of all phases that are going on, the outermost first, and the innermost phase."""
    phases = list(_phases)
    return (", ".join(each.name for each in phases), phases[-1]) if phases else None


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
