"""Help: every command in its section, whole sentences at 80 columns, examples that parse."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from ascent.cli.help import examples, sentence
from ascent.cli.main import AscentGroup, app

GROUP: Any = typer.main.get_command(app)


def every_command(
    group: Any = GROUP, path: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], Any]]:
    found = []
    for name, command in group.commands.items():
        if not command.hidden:
            found.append(((*path, name), command))
            found += every_command(command, (*path, name)) if hasattr(command, "commands") else []
    return found


COMMANDS = every_command()
LEAVES = [(path, command) for path, command in COMMANDS if not hasattr(command, "commands")]
NAMES = [" ".join(path) for path, _ in COMMANDS]


def help_of(*words: str) -> str:
    return (
        CliRunner()
        .invoke(app, [*words, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
        .stdout
    )


def test_every_command_has_its_section() -> None:
    listed = [name for names in AscentGroup.sections.values() for name in names]
    assert sorted(listed) == sorted(
        name for name, each in GROUP.commands.items() if not each.hidden
    )
    text = help_of()
    places = [text.index(f"\n{title}:\n") for title in AscentGroup.sections]
    assert places == sorted(places)
    assert [name for name, each in GROUP.commands.items() if each.hidden] == ["rounds"]


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=NAMES)
def test_first_sentences_fit_one_line_of_80_columns(path: tuple[str, ...], command: Any) -> None:
    text = help_of(*path[:-1])
    (line,) = [
        line
        for line in text.splitlines()
        if line.split()[:1] == [path[-1]] and line.startswith("  ")
    ]
    assert line.endswith(sentence(command.help)) and len(line) <= 80
    assert "..." not in text.replace("[ARGS]...", "")


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[" ".join(path) for path, _ in LEAVES])
def test_every_command_has_examples_that_parse(path: tuple[str, ...], command: Any) -> None:
    lines = [line.strip() for line in (command.epilog or "").splitlines()[2:]]
    assert lines, "give it an example"
    text = help_of(*path)
    for line in lines:
        assert line in text
        words = shlex.split(line)
        assert words[: len(path) + 1] == ["ascent", *path]
        command.make_context(path[-1], words[len(path) + 1 :])


def test_examples_keep_their_lines() -> None:
    assert examples("a").splitlines() == ["\b", "Example:", "  a"]
    assert examples("a", "b").splitlines()[1:] == ["Examples:", "  a", "  b"]


def test_a_sentence_is_the_first_paragraph() -> None:
    assert sentence("One\n  line.\n\nMore.") == "One line."
    assert sentence(None) == ""
