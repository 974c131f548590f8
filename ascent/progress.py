"""Progress inside a step. Whoever works says so with `phase`; the terminal reads `current`.

Counting is all that the work pays for: a display reads the numbers at its own pace, from another thread. Whoever waits
for something outside this process says so with `WaitingNotes`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
_phases: list[Phase] = []  # the innermost last
_receivers: list[Callable[[str], None]] = []  # of notes; the last one gets them
FIRST_NOTE, SECOND_NOTE = (
    10.0,
    60.0,
)  # seconds of waiting; each later note comes after twice the time


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
def phase(
    name: str, total: int = 0, unit: str = "", *, count: Callable[[], int] | None = None
) -> Iterator[Phase]:
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


def note(text: str) -> None:
    """A line for the person who watches, above the bars of a terminal or in the log."""
    if _receivers:
        _receivers[-1](text)
    else:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def notes_to(receiver: Callable[[str], None]) -> Iterator[None]:
    """`receiver` gets the notes inside; without one they go to standard error."""
    _receivers.append(receiver)
    try:
        yield
    finally:
        _receivers.remove(receiver)


class WaitingNotes:
    """What is waited for and why: first after FIRST_NOTE seconds, then seldom. Any thread may call it."""

    def __init__(
        self, say: Callable[[str], None] = note, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._clock, self._lock = say, clock, threading.Lock()
        self._began: float | None = None
        self._since, self._next = "", FIRST_NOTE

    def waiting(self, describe: Callable[[str], str]) -> None:
        """Called again and again while something is missing; `describe` gets `12 s, since 14:03:07`."""
        with self._lock:
            now = self._clock()
            if self._began is None:
                self._began, self._since, self._next = now, time.strftime("%H:%M:%S"), FIRST_NOTE
            seconds = now - self._began
            if seconds < self._next:
                return
            self._next, since = max(2 * seconds, SECOND_NOTE), self._since
        self._say(describe(f"{seconds:.0f} s, since {since}"))

    def over(self, text: str = "") -> None:
        """It is there; said only if there is a text and the waiting was said."""
        with self._lock:
            if self._began is None:
                return
            seconds, said = self._clock() - self._began, self._next > FIRST_NOTE
            self._began = None
        if said and text:
            self._say(f"{text} after {seconds:.0f} s")
