"""Help texts: commands in sections with their first sentence, and examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from ascent.cli.options import OverridesCommand, ResumeCommand


class SectionedGroup(TyperGroup):
    """Lists commands by section, as plain text: importing rich takes longer than all of the rest of `--help`."""

    sections: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        order = [name for names in self.sections.values() for name in names]
        return sorted(
            self.commands, key=lambda name: order.index(name) if name in order else len(order)
        )

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sentences = {
            name: sentence(each.help) for name, each in self.commands.items() if not each.hidden
        }
        for title, names in (self.sections or {"Commands": tuple(self.list_commands(ctx))}).items():
            with formatter.section(title):
                formatter.write_dl([(name, sentences[name]) for name in names if name in sentences])


def sentence(text: str | None) -> str:
    """The first paragraph, on one line."""
    return " ".join((text or "").partition("\n\n")[0].split())


def examples(*commands: str) -> str:
    """An epilog that lists commands; its first character keeps each on a line of its own."""
    return "\n".join(
        [
            "\b",
            "Examples:" if len(commands) > 1 else "Example:",
            *(f"  {each}" for each in commands),
        ]
    )


def add(app: typer.Typer, name: str, function: Callable[..., Any], *commands: str) -> None:
    """Register a command with examples."""
    kind: type[TyperCommand] | None = (
        OverridesCommand if "overrides" in signature(function).parameters else None
    )
    kind = ResumeCommand if name == "resume" else kind
    app.command(name, epilog=examples(*commands), cls=kind)(function)
