"""Names in a recipe's data section: built-in tasks, their splits and counts, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascent.build.plan import resolve
from ascent.build.records import loaded
from ascent.build.training import assemble, train
from ascent.config.validate import validate
from ascent.models.load import load
from ascent.records import Example, Judged, Pair, Ranking
from tests.build.runs import tiny_plan


@pytest.mark.parametrize(
    ("want", "kind"), [("examples", Example), ("pairs", Pair), ("rankings", Ranking), ("unpaired", Judged)]
)
def test_a_task_gives_records_of_the_wanted_kind(want: str, kind: type) -> None:
    found = loaded("sort_digits@heldout:5", want, seed=0)  # type: ignore[arg-type]
    assert len(found.records) == 5
    assert all(isinstance(record, kind) for record in found.records)


def test_defaults_and_seeds() -> None:
    assert len(loaded("arithmetic", "examples", seed=0).records) == 2048
    first, second = (loaded("arithmetic:20", "examples", seed=seed).records for seed in (0, 1))
    assert first != second
    assert first == loaded("arithmetic:20", "examples", seed=0).records


def test_a_split_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="splits train and heldout, not 'test'"):
        loaded("arithmetic@test", "examples", seed=0)


def test_anything_else_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps({"prompt": "2+2=", "completion": "4"}) + "\n")
    assert len(loaded(str(file), "examples", seed=0).records) == 1
    with pytest.raises(ValueError, match="no file or folder at"):
        loaded(str(tmp_path / "missing.jsonl"), "examples", seed=0)


@pytest.mark.parametrize("key", ["train", "evaluate", "mix"])
def test_a_missing_file_is_told_before_the_model_is_loaded(key: str, tmp_path: Path) -> None:
    """Here the model is missing too, and would be complained of otherwise."""
    gone = "gone.jsonl"
    data = {"train": "arithmetic:20", key: [{"use": gone, "share": 0.5}] if key == "mix" else gone}
    config = {"algorithm": "sft", "model": {"policy": str(tmp_path / "no model")}, "data": data}
    with pytest.raises(ValueError, match=r"no file or folder at gone\.jsonl"):
        assemble(resolve(validate(config)), tmp_path / "run")


def judged_file(folder: Path, labels: list[float | bool | None]) -> str:
    file = folder / "steps.jsonl"
    file.write_text(json.dumps({"prompt": "add 3 8 =", "completions": ["3", "11", "12"], "labels": labels}) + "\n")
    return str(file)


def test_judged_steps_are_classes_for_one_row_and_probabilities_for_the_other(tmp_path: Path) -> None:
    """The first class is "right", so that a score is the log-odds of a right step in both."""
    found = {}
    for name in ("prm", "prm_soft"):
        data = {"train": judged_file(tmp_path, [True, None, False]), "evaluate": None, "batch_size": 1}
        plan = tiny_plan(algorithm=name, run={"evaluate_every": 20}, **{"data": {}})
        plan = type(plan)(plan.config.model_copy(update={"data": plan.config.data.model_copy(update=data)}), plan.row)
        batch = assemble(plan, tmp_path / name).source.next(1)[0]
        found[name] = batch["step_labels_T"][batch["step_ends_T"]].tolist()
    assert found["prm"] == [0.0, -1.0, 1.0]
    assert found["prm_soft"][::2] == [1.0, 0.0]
    assert found["prm_soft"][1] != found["prm_soft"][1]  # NaN


def test_a_probability_is_no_class(tmp_path: Path) -> None:
    plan = tiny_plan(algorithm="prm")
    data = plan.config.data.model_copy(update={"train": judged_file(tmp_path, [1, 0.5, 0]), "evaluate": None})
    with pytest.raises(ValueError, match=r"a step is judged 0\.5, between wrong and right; .* use prm_soft"):
        assemble(type(plan)(plan.config.model_copy(update={"data": data}), plan.row), tmp_path / "run")


def test_a_model_that_judged_steps_is_a_reward_model_of_answers(tmp_path: Path) -> None:
    train(tiny_plan(algorithm="prm"), tmp_path / "run", say=lambda line: None)
    judge = load(tmp_path / "run", head="scalar")
    assert not [note for note in judge.notes if "head is new" in note]
