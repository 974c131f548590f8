"""The name under which the package is installed. The import and the command are `ascent`: that name is taken there."""

from __future__ import annotations

NAME = "ascent-posttrain"


def install_hint(extra: str) -> str:
    """The command that adds an extra of pyproject.toml."""
    return f"pip install '{NAME}[{extra}]'"
