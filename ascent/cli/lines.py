"""Lines of text: on a terminal they break between words; piped, they are as long as they are."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from typing import TextIO

import typer


def line_width(stream: TextIO) -> int | None:
    """The columns of a terminal, or COLUMNS where it is set; None where lines may be of any length."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns):
        return int(columns)
    return shutil.get_terminal_size().columns if stream.isatty() else None


def wrap(text: str, width: int | None, hang: int = 2) -> str:
    """Break long lines between words and indent what follows by `hang`; a word is never broken."""
    return "\n".join(_wrap_line(line, width, hang) for line in text.split("\n")) if width else text


def _wrap_line(line: str, width: int, hang: int) -> str:
    if len(line) <= width:
        return line
    words = line.lstrip(" ")
    indent = " " * (len(line) - len(words))
    return textwrap.fill(
        words,
        width,
        initial_indent=indent,
        subsequent_indent=indent + " " * hang,
        break_long_words=False,
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    )


def echo(text: str = "", *, hang: int = 2, err: bool = False, color: str | None = None) -> None:
    """Print text as it is, wrapped to the terminal."""
    text = wrap(text, line_width(sys.stderr if err else sys.stdout), hang)
    typer.secho(text, err=err, fg=color)


def format_bytes(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def peak_text(peak: int, available: int) -> str:
    """Peak memory, as `ascent check` and `ascent forecast` print it."""
    return f"{format_bytes(peak)} of {format_bytes(available)}"
