"""What users see is what `public_listing.txt` says; each kind of change shows as a line that a reviewer can read."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import ascent
from ascent import metrics
from ascent.algorithms import TABLE
from ascent.config import renamed
from ascent.config.schema import Update
from tests.regression import public_listing as listing

MISSING = [name for name in listing.EXTRA_PACKAGES if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"the listing needs {', '.join(MISSING)}: pip install '.[dev]'"
)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the runs that the sections share. One thread: the models are tiny."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path_factory.mktemp("listing")
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def accepted() -> dict[str, list[str]]:
    return listing.read_text(listing.FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("title", listing.SECTIONS)
def test_users_see_what_the_listing_says(
    title: str, work: Path, accepted: dict[str, list[str]]
) -> None:
    difference = listing.compare(accepted.get(title, []), listing.make_section(title, work))
    assert not difference, f"what users see has changed:\n\n{difference}"


def test_the_listing_has_no_other_sections(accepted: dict[str, list[str]]) -> None:
    assert list(accepted) == list(listing.SECTIONS)


def test_every_path_that_a_page_names_resolves() -> None:
    assert listing.unresolved_paths() == []


def changed_lines(accepted: Sequence[str], now: Sequence[str]) -> list[str]:
    """The lines of a difference, without the command below it."""
    return listing.compare(accepted, now).split("\n\n")[0].splitlines()


def test_a_difference_ends_with_the_command_that_accepts_it() -> None:
    assert listing.compare(["a", "b"], ["a", "c"]).splitlines() == [
        "-b",
        "+c",
        "",
        "To accept: .venv/bin/python -m tests.regression.public_listing --write",
    ]
    assert listing.compare(["a"], ["a"]) == ""


def test_a_listing_is_read_as_it_was_written() -> None:
    sections = {"1. One": ["a", "b: c"], "2. Two": ["d"]}
    assert listing.read_text(listing.write_text(sections)) == sections


def train(recipe: str, *, run: str | None = None, progress: bool = True) -> None: ...
def train_with_other_default(
    recipe: str, *, run: str | None = None, progress: bool = False
) -> None: ...
def train_without_run(recipe: str, *, progress: bool = True) -> None: ...
def train_in_another_order(
    *, progress: bool = True, run: str | None = None, recipe: str
) -> None: ...


@pytest.mark.parametrize(
    ("function", "lines"),
    [
        (
            train_with_other_default,
            ["-f(*, progress: bool = True)", "+f(*, progress: bool = False)"],
        ),
        (train_without_run, ["-f(*, run: str | None = None)"]),
        (train_in_another_order, ["-f(1 recipe: str)", "+f(*, recipe: str)"]),
    ],
)
def test_a_changed_parameter_is_a_line(function: Any, lines: list[str]) -> None:
    before, after = (sorted(listing.describe("f", each)) for each in (train, function))
    assert sorted(changed_lines(before, after)) == sorted(lines)


def test_fields_properties_and_methods_of_a_class_are_lines() -> None:
    assert sorted(listing.describe_class("ascent.Message", ascent.Message)) == [
        "ascent.Message(1 role: Role)",
        "ascent.Message(2 content: str)",
        'ascent.Message(3 extra: str = "")',
        "ascent.Message: frozen dataclass",
    ]
    policy = listing.describe_class("P", ascent.Policy, attributes=True)
    assert {"P.learning_rate: float (property, may be set)", "P.save() -> None"} <= set(policy)
    assert {"P.save(1 folder: str | Path)", "P.model: attribute"} <= set(policy)


def test_a_page_names_paths_in_imports_references_and_code() -> None:
    text = """Use `ascent.rewards.find` or:
    from ascent.losses import (
        ratios,  # several
        values as v,
    )
    v.mse(1), ratios.token
::: ascent.api.batches
    options:
      members: [load_data, batches]
"""
    assert {
        *("ascent.rewards.find", "ascent.losses", "ascent.losses.ratios", "ascent.losses.values"),
        *("ascent.losses.values.mse", "ascent.losses.ratios.token", "ascent.api.batches"),
        *("ascent.api.batches.load_data", "ascent.api.batches.batches"),
    } == set(listing.paths_in(text))


def test_a_path_that_leads_nowhere_is_named_with_its_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = [("docs/a.md", "`ascent.rewards.find`, `ascent.rewards.seek`, `ascent.rewards`")]
    monkeypatch.setattr(listing, "user_texts", lambda: iter(pages))
    assert listing.unresolved_paths() == ["docs/a.md: ascent.rewards.seek"]


def test_a_renamed_recipe_key_and_a_changed_default_are_lines() -> None:
    def lines(name: str, default: float) -> list[str]:
        schema = Update.model_json_schema()
        rate = {**schema["properties"].pop("learning_rate"), "default": default}
        schema["properties"][name] = rate
        return sorted(listing.key_lines(schema, {}, "update."))

    before = lines("learning_rate", 1e-6)
    sentence = "[resume: may change] Peak learning rate of AdamW."
    assert sorted(changed_lines(before, lines("rate", 1e-6))) == [
        "+update.rate: number, above 0, at most 1 = 1e-06 Peak learning rate of AdamW.",
        f"-update.learning_rate: number, above 0, at most 1 = 1e-06 {sentence}",
    ]
    assert changed_lines(before, lines("learning_rate", 1e-5)) == [
        f"-update.learning_rate: number, above 0, at most 1 = 1e-06 {sentence}",
        f"+update.learning_rate: number, above 0, at most 1 = 1e-05 {sentence}",
    ]


def test_rows_renamed_keys_and_metrics_are_lines(
    monkeypatch: pytest.MonkeyPatch, accepted: dict[str, list[str]], work: Path
) -> None:
    row = TABLE["grpo"]
    assert row.kl is not None
    monkeypatch.setitem(
        TABLE, "grpo", dataclasses.replace(row, kl=dataclasses.replace(row.kl, weight=0.5))
    )
    old_key, new_key = next(iter(renamed.KEYS.items()))
    monkeypatch.delitem(renamed.KEYS, old_key)
    assert changed_lines(accepted["3. Recipes"], listing.make_section("3. Recipes", work)) == [
        f"-renamed key {old_key}: {new_key}",
        "-row grpo.kl: k3(weight=0.04, cap=0.0, guard=20.0)",
        "+row grpo.kl: k3(weight=0.5, cap=0.0, guard=20.0)",
    ]
    last = metrics.REGISTRY[-1]
    monkeypatch.setattr(
        listing, "REGISTRY", (*metrics.REGISTRY[:-1], dataclasses.replace(last, unit="tokens/s"))
    )
    title = "7. Environment variables, entry points, metrics, diagnosis"
    before, after = changed_lines(accepted[title], listing.make_section(title, work))
    assert before.startswith(f"-metric {last.name} [tokens per second]: ")
    assert after.startswith(f"+metric {last.name} [tokens/s]: ")


def test_json_is_listed_by_key_and_type() -> None:
    lines = [{"step": 1, "parts": {"exact": 0.5}, "tokens": ["a"]}]
    lines.append({"step": 2, "parts": {"exact": None}, "tokens": []})
    assert sorted(listing.shape(lines)) == [
        "parts.<name>: float|null",
        "step: int",
        "tokens[]: str",
    ]
    renamed_key = [{**each, "tokens": None, "ids": each["tokens"]} for each in lines]
    assert listing.shape(renamed_key) == [
        "step: int",
        "parts.<name>: float|null",
        "tokens: null",
        "ids[]: str",
    ]
    assert listing.shape([{"format": 3, "at": [1, ["a"], []]}]) == [
        "format: 3",
        "at[0]: int",
        "at[1][]: str",
        "at[2][]: empty",
    ]


def test_a_renamed_file_of_a_run_is_two_lines(tmp_path: Path) -> None:
    def facts(name: str) -> list[str]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text(json.dumps({"step": 1}) + "\n")
        (folder / "checkpoints/20").mkdir(parents=True)
        (folder / "checkpoints/20/state.json").write_text(json.dumps({"steps": 20}))
        return sorted(listing.folder_facts(folder))

    assert facts("metrics.jsonl") == [
        "checkpoints/<step>/state.json steps: int",
        "file checkpoints/<step>/state.json",
        "file metrics.jsonl",
        "metrics.jsonl step: int",
    ]
    assert "file numbers.jsonl" in facts("numbers.jsonl")
