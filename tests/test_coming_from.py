"""docs/coming-from: every key, row and cell of Ascent that it names exists, and every recipe in it resolves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ascent.algorithms import TABLE
from ascent.config.schema import MULTI_CELL_SLOTS, TERM_SLOTS, Config, leaves
from ascent.config.validate import validate
from ascent.plan import resolve
from ascent.plan.cell_schema import cell_schema

ROOT = Path(__file__).parents[1] / "docs"
PAGES = sorted((ROOT / "coming-from").glob("*.md"))
TUTORIALS = sorted((ROOT / "tutorial").glob("*.md"))
RECIPE = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`([^`\n]+)`")
DOTTED = re.compile(r"[a-z_0-9]+(\.[a-z_0-9]+)+")
VOCABULARY = cell_schema()


def exists(word: str) -> bool:
    """A key of the schema, `slot.function`, or `cells.slot` with a function or a number of that slot behind it."""
    if word in leaves() or word in Config.model_fields:
        return True
    first, *rest = word.split(".")
    if first == "cells":
        slot, functions = rest[0], VOCABULARY.get(rest[0], {})
        numbers = {name for each in functions.values() for name in each["numbers"]}
        inner = (
            {*functions}
            if slot in MULTI_CELL_SLOTS
            else numbers | ({"weight"} if slot in TERM_SLOTS else set())
        )
        return bool(functions) and len(rest) <= 2 and (len(rest) == 1 or rest[1] in inner)
    return len(rest) == 1 and rest[0] in VOCABULARY.get(first, {})


def counterparts(text: str) -> list[str]:
    """The quoted words of the last columns of tables, and the quoted words of prose."""
    found: list[str] = []
    for line in FENCE.sub("", text).splitlines():
        if line.startswith("    "):
            continue
        column = line.rstrip("|").rpartition(" | ")[2] if line.startswith("|") else line
        found += QUOTED.findall(column)
    return found


def is_key(word: str) -> bool:
    """Whether a dotted word names a key or a cell: it starts with a section or a slot."""
    sections = {name.partition(".")[0] for name in leaves()} | {"cells"} | set(VOCABULARY)
    return (
        bool(DOTTED.fullmatch(word))
        and word.partition(".")[0] in sections
        and not word.endswith((".py", ".jsonl"))
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_key_row_and_cell_exists(page: Path) -> None:
    words = counterparts(page.read_text())
    rows = [word.removeprefix("row ") for word in words if word.startswith("row ")]
    keys = [word for word in words if is_key(word)]
    assert len(rows) > 5 and len(keys) > 30
    assert [name for name in rows if name not in TABLE] == []
    assert [word for word in keys if not exists(word)] == []


@pytest.mark.parametrize(
    "page",
    [page for page in (*PAGES, *TUTORIALS) if RECIPE.search(page.read_text())],
    ids=lambda p: p.stem,
)
def test_every_recipe_resolves(page: Path) -> None:
    for text in RECIPE.findall(page.read_text()):
        resolve(validate(yaml.safe_load(text)))


def test_there_is_a_page_for_each_peer() -> None:
    assert {page.stem for page in PAGES} == {"trl", "verl", "openrlhf", "ms-swift"}
    for page in PAGES:
        algorithms = [
            yaml.safe_load(text)["algorithm"] for text in RECIPE.findall(page.read_text())
        ]
        assert {"grpo", "dpo"} <= set(algorithms), page.name


def test_the_test_would_notice() -> None:
    assert (
        exists("rollouts.group_size")
        and exists("cells.policy_loss.high")
        and exists("policy_loss.dual_clip")
        and exists("env")
    )
    for word in (
        "rollouts.groups",
        "cells.policy_loss.tall",
        "policy_loss.nothing",
        "cells.nothing",
        "cells.policy_loss.high.more",
    ):
        assert not exists(word)
    assert is_key("rollouts.groups") and not is_key("actor_rollout_ref.rollout.n")
