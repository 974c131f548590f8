"""Commands of the pages: their options exist; what the tutorials set on a shipped recipe resolves.

tests/test_readme.py runs the Python snippets of the same pages; the commands would train for minutes.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ascent.cli.main import app
from ascent.plan import resolve
from ascent.plan.load import load_config

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
COMMAND = re.compile(r"^ {4}(?:\$ )?(?:\.venv/bin/)?ascent (.*)$", re.MULTILINE)
COMMANDS = [(page.stem, line) for page in PAGES for line in COMMAND.findall(page.read_text())]
OTHERS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EVERYWHERE = [
    (page.stem, line)
    for page in OTHERS
    if page.parent.name != "decisions"
    for line in COMMAND.findall(page.read_text())
]


def words_of(line: str) -> list[str]:
    return shlex.split(line, comments=True)


def test_every_page_has_commands() -> None:
    assert {page for page, _ in COMMANDS} == {
        "first-run",
        "your-own-model",
        "your-own-preferences",
        "your-own-reward",
    }


@pytest.mark.parametrize(("page", "line"), EVERYWHERE)
def test_the_command_and_its_options_exist(page: str, line: str) -> None:
    words = words_of(line)
    command = words[:2] if words[0] in ("show", "classic") else words[:1]
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0, result.output
    for word in words:
        if word.startswith("--"):
            assert re.search(rf"{word}\b", result.output), (
                f"{word} is no option of ascent {' '.join(command)}"
            )


@pytest.mark.parametrize(
    ("page", "line"),
    [each for each in COMMANDS if re.match(r"(train|check|show config) [a-z_]+( |$)", each[1])],
)
def test_what_is_set_on_a_shipped_recipe_resolves(page: str, line: str) -> None:
    words = words_of(line.removeprefix("show "))
    recipe, rest = words[1], words[2:]
    resolve(load_config(recipe, [word for word in rest if "=" in word]))
