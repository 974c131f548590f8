"""The comparison of two trees sees what it is for: a changed default, a moved function that an old run names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.regression import same_bits
from tests.regression.cases import cases_on_cuda, list_cases
from tests.regression.same_bits import ROOT, References, describe_machine, differences, measure

BEFORE = {
    "config": {"update.learning_rate": 1e-3},
    "notes": ["training", "done"],
    "weights": {"model/model.safetensors": "aa"},
    "checkpoint": {"state.json: source": "bb"},
    "rollouts": {"text": "cc"},
    "metrics": {"loss/total": "dd"},
}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"config": {"update.learning_rate": 2e-3}},
            "update.learning_rate differs: 0.001 -> 0.002",
        ),
        ({"config": {}}, "config: update.learning_rate is gone"),
        ({"notes": ["training", "ended"]}, "note gone: done"),
        ({"notes": ["done", "training"]}, "the notes come in another order"),
        (
            {"weights": {"model/model.safetensors": "ab"}},
            "weights: model/model.safetensors differs",
        ),
        ({"checkpoint": {}}, "checkpoint: state.json: source is gone"),
        ({"rollouts": {"text": "cd"}}, "rollouts: text differs"),
        ({"metrics": {"loss/total": "de"}}, "metrics: loss/total differs"),
        (
            {"resumed": {"weights": False, "rollouts": True}},
            "the resumed run ends in other weights",
        ),
        ({"error": "ValueError: no"}, "fails: ValueError: no"),
    ],
)
def test_a_difference_is_told(change, told) -> None:
    different, _ = differences(BEFORE, {**BEFORE, **change})
    assert told in different[0]


def test_a_new_key_at_its_default_is_listed_and_no_difference() -> None:
    new = {**BEFORE, "config": {**BEFORE["config"], "update.new": 0}}
    assert differences(BEFORE, new) == ([], ["config: update.new = 0"])
    assert differences(BEFORE, {**BEFORE, "resumed": {"weights": True}}) == ([], [])


def test_a_case_that_neither_tree_trains_is_a_difference() -> None:
    failing = {"error": "ValueError: no"}
    assert differences(failing, failing)[0]
    assert differences(failing, BEFORE) == ([], ["trains; before: ValueError: no"])


def test_every_row_of_the_table_is_a_case() -> None:
    from ascent.algorithms import TABLE

    assert {f"row {name}" for name in TABLE} <= list_cases().keys()
    assert len(cases_on_cuda()) == 8


def test_references_are_kept_for_the_machine_and_the_recipe(tmp_path, monkeypatch) -> None:
    made = []

    def measured(tree, cases, old, *, jobs):
        made.append(sorted(cases))
        return {name: dict(BEFORE) for name in cases}

    monkeypatch.setattr(same_bits, "measure", measured)
    monkeypatch.setattr(same_bits, "KEPT", tmp_path)
    cases = {name: list_cases()[name] for name in ("row grpo", "row sft")}
    references = References("cpu", {"base": str(tmp_path)}, jobs=1)
    assert references.of("base", cases)["row sft"]["config"] == BEFORE["config"]
    references.of("base", cases)
    assert made == [["row grpo", "row sft"]]
    references.of("base", {"row grpo": list_cases()["row dapo"]})  # another recipe of that name
    assert made[1:] == [["row grpo"]]
    assert describe_machine() in references.machine and "threads" in references.machine
    other = References("cuda", {"base": str(tmp_path)}, jobs=1)
    other.of("base", {"row sft": cases["row sft"]})
    assert made[2:] == [["row sft"]]


def test_trees_that_differ_in_a_default_and_in_the_place_of_a_function(tmp_path: Path) -> None:
    names = ("row grpo", "old grpo, rewards as functions")
    cases = {name: list_cases()[name] for name in names}
    old = tmp_path / "old"
    written = measure(ROOT, {names[1]: cases[names[1]]}, old, write_old=True, jobs=1)
    assert "error" not in written[names[1]]
    before = measure(ROOT, cases, old, jobs=2)
    assert [differences(before[name], before[name]) for name in names] == [([], []), ([], [])]

    changed = tmp_path / "changed"
    shutil.copytree(ROOT / "ascent", changed / "ascent")
    schema = changed / "ascent/config/schema.py"
    text = schema.read_text()
    beta = text.index("adam_beta2: Float = Field(")
    schema.write_text(text[:beta] + text[beta:].replace("0.999", "0.99", 1))
    registry = changed / "ascent/rewards/registry.py"
    moved = '\nBatchFunction.__module__ = "ascent.rewards.elsewhere"\n'
    registry.write_text(registry.read_text() + moved)
    after = measure(changed, cases, old, jobs=2)
    told, _ = differences(before[names[0]], after[names[0]])
    assert "config: update.adam_beta2 differs: 0.999 -> 0.99" in told
    assert any(line.startswith("weights: ") for line in told)
    (refused,), _ = differences(before[names[1]], after[names[1]])
    assert "fails: " in refused and "rewards[0].use" in refused
