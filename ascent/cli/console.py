"""Rich text and tables. What users write is printed as it is: no markup, no emoji codes, no highlighting."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ascent.cli.lines import line_width, wrap

PIPE_WIDTH = 500  # of tables, so that each row is one line and grep and cut work
GAP = 2
LONG_CELL, READABLE = 40, 30  # a cell that may need more than 40 columns gets at least 30


def make_console(pipe_width: int = PIPE_WIDTH) -> Console:
    return Console(
        width=line_width(sys.stdout) or pipe_width, markup=False, emoji=False, highlight=False
    )


def print_text(console: Console, text: str | Text = "", style: str = "") -> None:
    """Lines, broken between words on a terminal; a word is never broken."""
    width, shown = (
        line_width(sys.stdout),
        Text(text, style=style) if isinstance(text, str) else text,
    )
    for line in shown.split("\n", allow_blank=True):
        console.print(line if width is None else _break_line(line, width), soft_wrap=True)


def _break_line(line: Text, width: int) -> Text:
    """Text of one line on several lines; rich itself would break long words or cut them off."""
    breaks, start = [], 0
    for word in re.finditer(r"\s*\S+", line.plain):
        if word.end() - start > width and word.start() > start:
            start = word.end() - len(word[0].lstrip())
            breaks.append(start)
    parts = line.divide(breaks)
    for part in parts[:-1]:
        part.rstrip()
    return Text("\n").join(parts)


def print_table(
    console: Console,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    indent: int = 0,
    numbers: bool = False,
) -> None:
    """A table whose cells break between words; one block for each row where it does not fit. `numbers`: every column
    but the first is aligned to the right."""
    rows = [list(row) for row in rows]
    widths = fit_columns(columns, rows, console.width - indent)
    if widths is None:
        print_records(console, columns, rows, indent=indent)
        return
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for place, (column, width) in enumerate(zip(columns, widths, strict=True)):
        table.add_column(column, width=width, justify="right" if numbers and place else "left")
    for row in rows:
        table.add_row(*row)
    console.print(Padding(table, (0, 0, 0, indent), expand=False))


def fit_columns(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> list[int] | None:
    """The widths of the columns, such that no word is broken; None where that takes more than `width`, or where what
    must be read would be squeezed into a narrow column."""
    cells = list(zip(columns, *rows, strict=True))
    full = [max(map(cell_len, column)) for column in cells]
    least = [
        max(cell_len(word) for text in column for word in text.split() or [""]) for column in cells
    ]
    room = width - GAP * (len(columns) - 1)
    if sum(full) <= room:
        return full
    if sum(least) > room:
        return None
    spare, wanted = room - sum(least), sum(full) - sum(least)
    found = [low + (high - low) * spare // wanted for low, high in zip(least, full, strict=True)]
    squeezed = any(
        own < min(high, READABLE) for own, high in zip(found, full, strict=True) if high > LONG_CELL
    )
    return None if squeezed else found


def print_records(
    console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]], *, indent: int = 0
) -> None:
    """Each row as a block: its first cell, then the others that hold something, by the names of their columns."""
    margin = " " * indent
    for first, *others in rows:
        print_text(console, margin + first, "bold")
        for column, text in zip(columns[1:], others, strict=True):
            if text:
                print_text(
                    console,
                    wrap(f"{margin}  {column + ': ' if column else ''}{text}", console.width),
                )
