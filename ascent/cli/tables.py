"""Algorithms and metrics as tables. Piped, each row is one line, so that grep and cut work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from ascent.algorithms import Row
from ascent.cli import cell_text
from ascent.cli.cell_text import Choice
from ascent.cli.console import fit_columns, make_console, print_table, print_text
from ascent.cli.lines import wrap
from ascent.cli.search import Match
from ascent.metrics import MetricInfo, range_text

INDENT = 2


def print_rows(rows: Iterable[Row]) -> None:
    """A column for every slot where that fits, else the slots of a row that hold something in one column."""
    console = make_console()
    for title, columns, part in cell_text.split(rows):
        print_text(console, title, "bold")
        texts = [[cell_text.summary(row)[column] for column in columns] for row in part]
        if fit_columns(columns, texts, console.width - INDENT) is None:
            texts = [[name, _joined(columns[1:], cells)] for name, *cells in texts]
            columns = ("name", "cells")
        print_table(console, columns, texts, indent=INDENT)
        print_text(console)
    print_text(console, "An empty cell does nothing. ascent show algorithm NAME explains a row.")


def _joined(columns: Sequence[str], cells: Sequence[str]) -> str:
    return "; ".join(
        f"{column} {text}" for column, text in zip(columns, cells, strict=True) if text
    )


def print_matches(found: Sequence[Match]) -> None:
    """Matching rows, then matching cells, with the places where the words occur."""
    console = make_console()
    if not found:
        note = "No row and no cell holds any of these words. ascent show algorithms lists the rows."
        print_text(console, note)
        return
    rows = [
        (each.entry.name, each.entry.title, _places(each))
        for each in found
        if isinstance(each.entry, Row)
    ]
    cells = [(*each.entry[2:], _places(each)) for each in found if isinstance(each.entry, Choice)]
    if rows:
        print_table(console, ("name", "what it is", "found in"), rows, indent=INDENT)
    if rows and cells:
        print_text(console)
    if cells:
        print_table(
            console, ("in a recipe", "numbers", "what it does", "found in"), cells, indent=INDENT
        )


def _places(found: Match) -> str:
    return ", ".join(dict.fromkeys(found.where))


def print_row(row: Row) -> None:
    console = make_console()
    print_text(console, Text.assemble((row.name, "bold"), f": {row.title}"))
    for label, text in (
        ("Paper", row.paper),
        ("Learns from", row.source),
        ("Formula", row.formula),
    ):
        _print_item(console, label, [text])
    print_text(console, "Cells", "bold")
    print_table(
        console,
        ("slot", "function", "numbers", "what it does"),
        cell_text.cells(row),
        indent=INDENT,
    )
    _print_item(
        console,
        "Defaults",
        [f"{key}: {cell_text.number(value)}" for key, value in row.defaults.items()],
    )
    _print_item(console, "Numbers from", [row.origin])
    _print_item(console, "Needs besides the policy", [", ".join(sorted(row.needs)) or "nothing"])
    _print_item(console, "Pitfalls", row.pitfalls)


def print_metrics(metrics: Iterable[MetricInfo]) -> None:
    rows = [(each.name, each.unit, range_text(each), each.summary) for each in metrics]
    print_table(make_console(), ("name", "unit", "healthy", "meaning"), rows, indent=INDENT)


def _print_item(console: Console, label: str, lines: Sequence[str]) -> None:
    print_text(console, label, "bold")
    for line in lines:
        print_text(console, wrap(f"  {line}", console.width))
