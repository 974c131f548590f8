"""Algorithms and metrics as tables. Piped, each row is one line, so that grep and cut work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table

from ascent.algorithms import Row
from ascent.cli import cell_text
from ascent.cli.cell_text import Choice
from ascent.cli.search import Match
from ascent.metrics import MetricInfo, range_text

PIPE_WIDTH = 500
# On a terminal long names break at their underscores, so that eight columns fit 100 characters.
CELL_WIDTH = 10


def print_rows(rows: Iterable[Row]) -> None:
    console = _console()
    for title, columns, part in cell_text.split(rows):
        _heading(console, title)
        texts = [[cell_text.summary(row)[column] for column in columns] for row in part]
        narrow = console.is_terminal
        heads = [break_name(name, CELL_WIDTH) for name in columns] if narrow else columns
        _print_table(console, heads, _break_names(texts) if narrow else texts)
        console.print()
    console.print("An empty cell does nothing. ascent show algorithm NAME explains a row.", highlight=False)


def print_matches(found: Sequence[Match]) -> None:
    """Matching rows, then matching cells, with the places where the words occur."""
    console = _console()
    if not found:
        note = "No row and no cell holds any of these words. ascent show algorithms lists the rows."
        console.print(note, highlight=False)
        return
    rows = [(each.entry.name, each.entry.title, _places(each)) for each in found if isinstance(each.entry, Row)]
    cells = [(*each.entry[2:], _places(each)) for each in found if isinstance(each.entry, Choice)]
    if rows:
        _print_table(console, ("name", "what it is", "found in"), rows)
    if rows and cells:
        console.print()
    if cells:
        _print_table(console, ("in a recipe", "numbers", "what it does", "found in"), cells)


def _places(found: Match) -> str:
    return ", ".join(dict.fromkeys(found.where))


def print_row(row: Row) -> None:
    console = _console()
    console.print(f"[bold]{row.name}[/]: {row.title}", highlight=False)
    for label, text in (("Paper", row.paper), ("Learns from", row.source), ("Formula", row.formula)):
        _print_item(console, label, [text])
    _heading(console, "Cells")
    _print_table(console, ("slot", "function", "numbers", "what it does"), cell_text.cells(row))
    _print_item(console, "Defaults", [f"{key}: {cell_text.number(value)}" for key, value in row.defaults.items()])
    _print_item(console, "Numbers from", [row.origin])
    _print_item(console, "Needs besides the policy", [", ".join(sorted(row.needs)) or "nothing"])
    _print_item(console, "Pitfalls", row.pitfalls)


def print_metrics(metrics: Iterable[MetricInfo]) -> None:
    rows = [(each.name, each.unit, range_text(each), each.summary) for each in metrics]
    _print_table(_console(), ("name", "unit", "healthy", "meaning"), rows)


def break_name(name: str, width: int) -> str:
    """'sequence_mean_token_mean' -> 'sequence_', 'mean_token_', 'mean' on lines of their own, none beyond `width`."""
    lines = [""]
    for part in name.replace("_", "_\n").split("\n"):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _break_names(rows: list[list[str]]) -> list[list[str]]:
    return [["\n".join(break_name(name, CELL_WIDTH) for name in text.split(", ")) for text in row] for row in rows]


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def _heading(console: Console, label: str) -> None:
    console.print(f"[bold]{label}[/]", highlight=False)


def _print_item(console: Console, label: str, lines: Sequence[str]) -> None:
    _heading(console, label)
    for line in lines:
        _print_indented(console, line)


def _print_indented(console: Console, content: RenderableType) -> None:
    console.print(Padding(content, (0, 0, 0, 2), expand=False), highlight=False, markup=False)


def _print_table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(*columns, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*row)
    _print_indented(console, table)
