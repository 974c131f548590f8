"""What the pages say about the code is true: files, functions, slots, keys and metrics that they name exist."""

from __future__ import annotations

import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from ascent.algorithms.row import SLOTS
from ascent.config.renamed import KEYS
from ascent.metrics import REGISTRY, find_metric

ROOT = Path(__file__).parents[1]
PAGES = [
    page
    for page in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    )
    if page.parent.name != "decisions"
]
NAMED = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.py)(?:(?:: |::)(\w+))?`")
PLACEHOLDERS = {"file.py", "mine.py"}  # files of a reader's own


def named(text: str) -> list[tuple[str, str]]:
    """Files of this repository that a page names, each with the function or class named after it, if any."""
    return [(path, name) for path, name in NAMED.findall(text) if path not in PLACEHOLDERS]


def problem(path: str, name: str) -> str | None:
    found = [folder / path for folder in (ROOT, ROOT / "ascent") if (folder / path).is_file()]
    if not found:
        return f"there is no {path}"
    if name and not re.search(
        rf"^\s*(?:def|class) {name}\b|^{name}\b.* = ", found[0].read_text(), re.MULTILINE
    ):
        return f"{path} has no {name}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_functions_that_a_page_names_exist(page: Path) -> None:
    problems = [problem(path, name) for path, name in named(page.read_text())]
    assert [each for each in problems if each] == []


def test_the_walk_through_a_step_names_functions() -> None:
    text = (ROOT / "docs" / "how-a-step-works.md").read_text()
    assert len([name for _, name in named(text) if name]) > 20


def test_the_test_would_notice() -> None:
    assert problem("rollouts/source.py", "RolloutSource") is None
    assert problem("rollouts/source.py", "Nothing") and problem("rollouts/nothing.py", "")


def test_the_glossary_explains_every_slot() -> None:
    table = (ROOT / "docs" / "glossary.md").read_text().partition("## Slots")[2]
    words = {
        word
        for line in table.splitlines()
        for word in re.findall(r"`(\w+)`", line[: line.find("|", 2)])
    }
    assert words == set(SLOTS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_names_that_a_page_names_exist(page: Path) -> None:
    for name in set(re.findall(r"`(ascent(?:\.\w+)+)", page.read_text())):
        pkgutil.resolve_name(name)


GROUPS = {each.name.partition("/")[0] for each in REGISTRY}
METRIC = re.compile(r"`(?:eval/)?([a-z]+)/([\w/]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_metrics_that_a_page_names_are_in_the_registry(page: Path) -> None:
    named = [
        f"{group}/{name}" for group, name in METRIC.findall(page.read_text()) if group in GROUPS
    ]
    assert [each for each in named if find_metric(each) is None] == []


def test_the_best_metric_of_a_recipe_is_in_the_registry() -> None:
    recipes = [
        yaml.safe_load(path.read_text()) for path in (ROOT / "ascent" / "recipes").glob("*.yaml")
    ]
    named = [
        recipe["run"]["best_metric"] for recipe in recipes if "best_metric" in recipe.get("run", {})
    ]
    assert named and [each for each in named if find_metric(each) is None] == []


OLD_SLOTS = [key.removeprefix("cells.") for key in KEYS if re.fullmatch(r"cells\.\w+", key)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_names_a_cell_by_its_old_slot(page: Path) -> None:
    """`policy_loss.clip`, not the slot's name of before; tests/test_names.py looks for whole keys."""
    text = page.read_text()
    assert [slot for slot in OLD_SLOTS if re.search(rf"`{slot}\.\w+`|cells: {{{slot}:", text)] == []


def test_the_readme_lists_every_package() -> None:
    section = (ROOT / "README.md").read_text().partition("## The tree follows the data")[2]
    tree = section.partition("```\n")[2].partition("```")[0]
    listed = {path.rstrip("/") for path in re.findall(r"^ ascent/(\S+)", tree, re.MULTILINE)}
    listed |= set(re.findall(r"([a-z]+)/", tree.splitlines()[2]))
    assert [path for path in listed if not (ROOT / "ascent" / path).exists()] == []
    packages = {
        path.name for path in (ROOT / "ascent").iterdir() if (path / "__init__.py").exists()
    }
    assert packages <= listed


def count_lines(paths: Iterable[Path]) -> int:
    return sum(path.read_text().count("\n") for path in paths)


def test_the_readme_says_how_large_the_package_is() -> None:
    text = (ROOT / "README.md").read_text()
    step = {path for path, _ in named((ROOT / "docs" / "how-a-step-works.md").read_text())}
    for pattern, paths in (
        (r"The package has about ([\d,]+) lines of Python", (ROOT / "ascent").rglob("*.py")),
        (
            r"files that one GRPO step runs have about ([\d,]+);",
            (ROOT / "ascent" / path for path in step),
        ),
    ):
        (figure,) = re.findall(pattern, text)
        lines = count_lines(paths)
        assert abs(int(figure.replace(",", "")) / lines - 1) < 0.03, (
            f"README.md says {figure}, but it is {lines} lines"
        )


def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip(
        "mkdocs", reason="the extra `docs` is not installed (make docs installs it)"
    )
    pytest.importorskip(
        "mkdocstrings", reason="the extra `docs` is not installed (make docs installs it)"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    remote = [
        (page.name, tag)
        for page in pages
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text())
        if re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag) and 'rel="canonical"' not in tag
    ]
    assert remote == []
    styles = [page.read_text() for page in (tmp_path / "site").rglob("*.css")]
    assert styles and not any(
        re.search(r"""(?:@import|url\()\s*["']?(?:https?:)?//""", text) for text in styles
    )
    assert (tmp_path / "site" / "search" / "search_index.js").exists()
    assert "assets/iframe-worker.js" in (tmp_path / "site" / "index.html").read_text()
