"""One name for installing, in pyproject.toml, messages and docs; a Dockerfile with the pinned versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from ascent.distribution import NAME, install_hint

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "ascent").rglob("*.py"),
    ROOT / "Dockerfile",
]
HISTORY = {"CHANGELOG.md"}
# An extra of the package, or the package as an argument of an installer.
EXTRA = re.compile(r"\bascent(-posttrain)?\[(\w[\w,]*)\]")
INSTALLED = re.compile(
    r"(?:pip|uv|pipx|uvx)(?: tool)? (?:install|add|run)(?: -\S+)* '?ascent(?![-\w])"
)


def wrong_names(text: str) -> list[str]:
    extras = [match for match in EXTRA.finditer(text) if not match[1]]
    return [match[0] for match in (*extras, *INSTALLED.finditer(text))]


def test_the_project_has_the_name_and_keeps_import_and_command() -> None:
    assert PROJECT["name"] == NAME
    assert PROJECT["scripts"] == {"ascent": "ascent.cli.main:run"}


def test_no_page_and_no_message_names_the_taken_package() -> None:
    found = {
        str(page.relative_to(ROOT)): wrong_names(page.read_text())
        for page in PAGES
        if page.name not in HISTORY
    }
    assert {page: names for page, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "text",
    [
        "pip install 'ascent[lora]'",
        "needs ascent[track]",
        "pip install ascent",
        "uv tool install -q ascent",
    ],
)
def test_the_test_would_notice(text: str) -> None:
    assert wrong_names(text)
    assert not wrong_names(text.replace("ascent", NAME))


def test_every_extra_that_is_named_exists() -> None:
    named = {
        extra
        for page in PAGES
        for match in EXTRA.finditer(page.read_text())
        for extra in match[2].split(",")
    }
    hints = {
        extra
        for page in PAGES
        for extra in re.findall(r"install_hint\(['\"](\w+)['\"]\)", page.read_text())
    }
    assert hints and (named | hints) <= set(PROJECT["optional-dependencies"])
    assert install_hint("lora") == f"pip install '{NAME}[lora]'"


def test_the_image_installs_the_pinned_versions_of_files_that_exist() -> None:
    lines = [
        line
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    base = re.fullmatch(r"FROM python:3\.(\d+)-slim\S*", lines[0])
    assert base and int(base[1]) >= 11
    copied = [path for line in lines if line.startswith("COPY ") for path in line.split()[1:-1]]
    assert copied and [path for path in copied if not (ROOT / path).exists()] == []
    assert {"constraints.txt", "pyproject.toml", "ascent"} <= {path.rstrip("/") for path in copied}
    installs = [line for line in " ".join(lines).split("RUN ") if "pip install" in line]
    assert installs and all(
        "-c constraints.txt" in command
        for line in installs
        for command in line.split("pip install")[1:]
    )
    pinned = {
        line.partition("==")[0].lower()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    assert {"torch", "transformers", "hatchling", "peft", "tensorboard"} <= pinned
