"""A griffe extension: `name: what it is` lines of a docstring become a list in the API reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

ARGUMENT = re.compile(r"^(\w+(?:, \w+)*): (?=\S)")


class ArgumentLists(griffe.Extension):
    """Docstrings list arguments one per line, without a section header."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if func.docstring is not None:
            names = {parameter.name for parameter in func.parameters}
            func.docstring.value = "\n".join(with_list(func.docstring.value.splitlines(), names))


def with_list(lines: list[str], names: set[str]) -> list[str]:
    """The lines, with those that explain parameters as list items."""
    found: list[str] = []
    for line in lines:
        argument = ARGUMENT.match(line)
        if argument and set(argument[1].split(", ")) <= names:
            if found and found[-1] and not found[-1].startswith("- "):
                found.append("")
            line = f"- `{argument[1]}`: {line[argument.end() :]}"
        found.append(line)
    return found
