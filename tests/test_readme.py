"""Every Python snippet of README.md and docs/ runs; the snippets of one page share their names, as a reader would."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ascent.plan import resolve
from ascent.plan.load import load_config

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^ {4}(?:\$ )?(?:\.venv/bin/)?ascent ([^#\n]*)", re.MULTILINE)


def snippets(page: Path) -> list[str]:
    return SNIPPET.findall(page.read_text())


@pytest.mark.parametrize(
    "page", [page for page in PAGES if snippets(page)], ids=lambda page: page.name
)
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for text in snippets(page):
        exec(compile(text, str(page), "exec"), names)


def test_the_readme_has_a_snippet():
    assert snippets(ROOT / "README.md")


@pytest.mark.parametrize("command", COMMAND.findall((ROOT / "README.md").read_text()))
def test_commands_of_the_readme_exist(command, tmp_path):
    """They run without a traceback; status 2 is a refusal."""
    done = subprocess.run(
        [sys.executable, "-m", "ascent", *command.split()],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert "Usage:" not in done.stderr


def test_the_error_in_the_readme_is_the_real_one():
    found = re.findall(
        r"^ {4}\$ ascent show config (.*)\n {4}ascent: (.*)$",
        (ROOT / "README.md").read_text(),
        re.MULTILINE,
    )
    assert found
    for command, message in found:
        recipe, *overrides = command.split()
        with pytest.raises(ValueError) as error:
            resolve(load_config(recipe, overrides))
        assert str(error.value) == message


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_tests_that_pages_name_exist():
    for page in PAGES:
        for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text()):
            assert f"def {name}(" in (ROOT / path).read_text(), f"{page.name} names {path}::{name}"
