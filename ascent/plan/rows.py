"""Rows by name: of the table, of another package's entry point, or of a file, `file.py:ROW`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from ascent.algorithms import TABLE, Row
from ascent.cells import nearest
from ascent.plugins import load_names

GROUP = "ascent.algorithms"
ROLLOUT_SLOTS = (
    "advantage",
    "advantage_norm",
    "rollout_correction",
    "ratio",
    "policy_loss",
    "aggregation",
)


def find_row(name: str) -> Row:
    """The row of that name; ValueError when there is none, or it is not whole."""
    if name in TABLE:
        return TABLE[name]
    if ".py:" in name:
        return _checked(name, _from_file(name))
    entries = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    if name in entries:
        return _checked(name, entries[name].load())
    raise ValueError(
        f"no algorithm named {name!r}; {nearest(name, row_names())} A row of your own is written file.py:ROW"
    )


def row_names() -> list[str]:
    """The names of the table's rows and of those that other packages bring."""
    return [*TABLE, *(entry.name for entry in importlib.metadata.entry_points(group=GROUP))]


def installed_rows() -> list[Row]:
    """The rows that other packages bring, by their entry points."""
    entries = importlib.metadata.entry_points(group=GROUP)
    return [
        _checked(entry.name, entry.load())
        for entry in sorted(entries, key=lambda entry: entry.name)
    ]


def _from_file(use: str) -> object:
    file, _, name = use.rpartition(":")
    path = Path(file)
    names = load_names(f"algorithm {use}", path)
    if name not in names:
        rows = [each for each, value in names.items() if isinstance(value, Row)]
        raise ValueError(
            f"algorithm {use}: {path.name} defines no {name}; its rows are {', '.join(rows) or 'none'}"
        )
    return names[name]


def _checked(use: str, found: object) -> Row:
    """A row that every later part can rely on, as the tests of the table demand of its own rows."""
    if not isinstance(found, Row):
        raise ValueError(
            f"algorithm {use} is a {type(found).__name__}, not a Row of ascent.algorithms"
        )
    if found.source == "rollouts":
        empty = [slot for slot in ROLLOUT_SLOTS if getattr(found, slot) is None]
        if empty or found.loss is not None:
            raise ValueError(
                f"algorithm {use} learns from rollouts and must fill {', '.join(ROLLOUT_SLOTS)} and leave loss empty; "
                f"it has no {', '.join(empty) or 'empty loss'}; start from a row of the table with dataclasses.replace"
            )
    elif found.loss is None:
        raise ValueError(f"algorithm {use} learns from {found.source} and has no loss; give it one")
    words = [
        name for name in ("name", "title", "paper", "formula", "origin") if not getattr(found, name)
    ]
    if words:
        raise ValueError(
            f"algorithm {use} says nothing under {', '.join(words)}; the next reader will want it"
        )
    return found
