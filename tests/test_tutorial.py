"""Commands of the tutorials: their verbs and options exist, and what they set on a shipped recipe resolves.

The Python snippets of the same pages are run by test_readme; commands would train for minutes.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ascent.cli.main import app
from ascent.config.load import load_config, shipped_recipes
from ascent.plan import resolve

PAGES = sorted((Path(__file__).parents[1] / "docs" / "tutorial").glob("*.md"))
COMMAND = re.compile(r"^ {4}\.venv/bin/ascent (.*)$", re.MULTILINE)
COMMANDS = [(page.stem, line) for page in PAGES for line in COMMAND.findall(page.read_text())]


def words_of(line: str) -> list[str]:
    return shlex.split(line, comments=True)


def test_every_page_has_commands() -> None:
    assert {page for page, _ in COMMANDS} == {"first-run", "your-own-model", "your-own-preferences", "your-own-reward"}


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_the_verb_and_its_options_exist(page: str, line: str) -> None:
    words = words_of(line)
    verb = words[:2] if words[0] == "show" else words[:1]
    told = CliRunner().invoke(app, [*verb, "--help"])
    assert told.exit_code == 0, told.output
    for word in words:
        if word.startswith("--"):
            assert re.search(rf"{word}\b", told.output), f"{word} is no option of ascent {' '.join(verb)}"


@pytest.mark.parametrize(
    ("page", "line"), [each for each in COMMANDS if re.match(r"(train|check|show config) [a-z_]+( |$)", each[1])]
)
def test_what_is_set_on_a_shipped_recipe_resolves(page: str, line: str) -> None:
    words = words_of(line.removeprefix("show "))
    recipe, rest = words[1], words[2:]
    if recipe not in shipped_recipes():
        pytest.fail(f"no recipe {recipe!r}")
    resolve(load_config(recipe, [word for word in rest if "=" in word]))
