"""Invalid rows: each is reported with its file and line, counted by kind, and fatal or skipped by policy."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, get_args

Kind = Literal["syntax", "encoding", "missing", "type", "empty", "equal", "special", "long"]
# fail: raise after everything is read; skip: leave them out and log it; collect: the caller shows the report.
Policy = Literal["fail", "skip", "collect"]

MAX_LISTED = 10  # invalid rows listed in an error; the rest are counted

log = logging.getLogger("ascent.data")


class RowError(ValueError):
    """Why a row cannot be used: the value, the rule, the fix."""

    def __init__(self, kind: Kind, reason: str) -> None:
        assert kind in get_args(Kind), kind
        super().__init__(reason)
        self.kind: Kind = kind


class MissingData(ValueError):
    """Nothing that can be read has this name."""


@dataclass(frozen=True)
class Place:
    """Where a row comes from: a line of a text file, a row of a table or an item of a generator, counted from 1."""

    file: str
    number: int
    unit: Literal["line", "row", "item"] = "line"

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.number}"
            if self.unit == "line"
            else f"{self.file} {self.unit} {self.number}"
        )


@dataclass(frozen=True)
class InvalidRow:
    place: Place
    kind: Kind
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@dataclass
class Report:
    """Counts of one pass over a dataset: rows read, invalid rows, and notes about valid ones."""

    policy: Policy = "fail"
    rows: int = 0
    invalid: list[InvalidRow] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise ValueError(
                f"invalid_rows={self.policy!r}, but it must be one of {', '.join(get_args(Policy))}"
            )

    def add(self, place: Place, error: RowError) -> None:
        self.invalid.append(InvalidRow(place, error.kind, str(error)))

    @property
    def kinds(self) -> Counter[str]:
        return Counter(row.kind for row in self.invalid)

    def lines(self) -> list[str]:
        """The report as text: invalid rows first, then notes."""
        found = []
        if self.invalid:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
            skipped = ", skipped" if self.policy == "skip" else ""
            found.append(f"{len(self.invalid)} invalid rows of {self.rows} ({kinds}){skipped}")
            found += [str(row) for row in self.invalid[:MAX_LISTED]]
            if len(self.invalid) > MAX_LISTED:
                found.append(f"... and {len(self.invalid) - MAX_LISTED} more")
        return found + [f"{count} {note}" for note, count in sorted(self.notes.items())]

    def finish(self, kept: int) -> None:
        """Raise if invalid rows are fatal or no row is left; otherwise log what was skipped."""
        if self.invalid and self.policy == "fail":
            fix = "fix or remove them, or skip them with data.invalid_rows=skip"
            raise ValueError("\n".join([*self.lines(), fix]))
        if kept == 0:
            raise ValueError(
                "\n".join([*self.lines(), "no valid row is left; there is nothing to train on"])
            )
        if self.policy != "collect":
            for line in self.lines():
                log.warning(line)
