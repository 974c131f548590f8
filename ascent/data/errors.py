"""Bad rows: each is named with its place, counted by kind, and fatal or skipped by policy. Never dropped in silence."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, get_args

Kind = Literal["syntax", "encoding", "missing", "type", "empty", "equal", "special", "long"]
# fail: raise after the whole was read; skip: leave them out and log it; collect: the caller shows the report.
Policy = Literal["fail", "skip", "collect"]

# How many bad rows an error names; the rest are counted.
NAMED = 10

log = logging.getLogger("ascent.data")


class RowError(ValueError):
    """Why one row cannot be used: what was found, the rule, the fix."""

    def __init__(self, kind: Kind, reason: str) -> None:
        assert kind in get_args(Kind), kind
        super().__init__(reason)
        self.kind: Kind = kind


@dataclass(frozen=True)
class Place:
    """Where a row was read: a line of a text file (from 1), a row of a table (from 1), an item of a generator."""

    file: str
    number: int
    unit: Literal["line", "row", "item"] = "line"

    def __str__(self) -> str:
        return f"{self.file}:{self.number}" if self.unit == "line" else f"{self.file} {self.unit} {self.number}"


@dataclass(frozen=True)
class BadRow:
    place: Place
    kind: Kind
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@dataclass
class Report:
    """What a pass over data met: rows read, rows refused, and remarks that are counted but refuse nothing."""

    policy: Policy = "fail"
    rows: int = 0
    bad: list[BadRow] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise ValueError(f"bad rows: policy {self.policy!r}, but it must be one of {', '.join(get_args(Policy))}")

    def refuse(self, place: Place, error: RowError) -> None:
        self.bad.append(BadRow(place, error.kind, str(error)))

    @property
    def kinds(self) -> Counter[str]:
        return Counter(row.kind for row in self.bad)

    def lines(self) -> list[str]:
        """The report in words, one line for each kind of finding."""
        found = []
        if self.bad:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
            found.append(f"{len(self.bad)} bad rows of {self.rows} ({kinds}){', skipped' * (self.policy == 'skip')}")
            found += [str(row) for row in self.bad[:NAMED]]
            if len(self.bad) > NAMED:
                found.append(f"... and {len(self.bad) - NAMED} more")
        return found + [f"{count} {note}" for note, count in sorted(self.notes.items())]

    def settle(self, kept: int) -> None:
        """Call after a pass: raises if a bad row is fatal or nothing is left; otherwise says what was skipped."""
        if self.bad and self.policy == "fail":
            fix = "mend or remove them, or skip them with data.invalid_rows=skip"
            raise ValueError("\n".join([*self.lines(), fix]))
        if kept == 0:
            raise ValueError("\n".join([*self.lines(), "no usable row is left; there is nothing to train on"]))
        if self.policy != "collect":
            for line in self.lines():
                log.warning(line)
