"""Combinations, folders, continuing by the same call, failures, and processes side by side."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import ascent
from ascent.api.sweep import plan_runs, run_name, split_values
from ascent.config.show import as_yaml
from ascent.runs.folder import read_run
from tests.setup.runs import TINY, tiny_recipe, weights_of

SETTINGS = ["run.steps=2", "run.save_every=1", "update.learning_rate=3e-3,1e-3", "seed=1,2"]
SAMPLED = {
    "algorithm": "grpo",
    "model.policy": "tiny:llama",
    "data.train": "sort_short:8",
    "data.evaluate": None,
}
NAMES = [f"learning_rate={rate}-seed={seed}" for rate in ("3e-3", "1e-3") for seed in (1, 2)]


def quiet(text: str) -> None:
    pass


def test_commas_inside_brackets_and_quotes_belong_to_a_value() -> None:
    assert split_values("1e-3, 1e-4") == ["1e-3", "1e-4"]
    assert split_values("[a,b],{use: x, n: (1,2)}") == ["[a,b]", "{use: x, n: (1,2)}"]
    assert split_values("'a,b',\"c,]d\",e") == ["'a,b'", '"c,]d"', "e"]


def test_names_are_short_where_unique_and_safe_as_folders() -> None:
    assert run_name({"update.learning_rate": "1e-3", "seed": "1"}) == "learning_rate=1e-3-seed=1"
    assert run_name({"a.weight": "1", "b.weight": "2"}) == "a.weight=1-b.weight=2"
    assert (
        run_name({"model.policy": "../x y/z", "rewards": "[{use: exact}]"})
        == "policy=.._x_y_z-rewards=_use_exact"
    )
    long = [run_name({"rewards": letter * 300 + end}) for letter, end in ("xa", "xb")]
    assert long[0] != long[1] and max(map(len, long)) < 140


def test_every_combination_is_planned(tmp_path: Path) -> None:
    runs = plan_runs(tiny_recipe(tmp_path), SETTINGS, tmp_path)
    assert [each.folder.name for each in runs] == NAMES
    assert [(each.plan.config.update.learning_rate, each.plan.config.seed) for each in runs] == [
        (3e-3, 1),
        (3e-3, 2),
        (1e-3, 1),
        (1e-3, 2),
    ]
    assert {each.plan.config.run.steps for each in runs} == {2}
    mapping = plan_runs(
        TINY, {"seed": [1, 2], "run.steps": 3, "run.trackers": [["tensorboard"]]}, tmp_path
    )
    assert [(each.plan.config.seed, each.plan.config.run.trackers) for each in mapping] == [
        (1, ("tensorboard",)),
        (2, ("tensorboard",)),
    ]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["seed=1"], "a sweep tries several values"),
        (["seed=1,1"], r"seed=1,1 must name each value once"),
        (["seed=1,,2"], r"seed=1,,2 must name each value once"),
        ({"seed": []}, "must name each value once"),
        (["seed"], "must look like key=value"),
        (["seed=1,2", "seed=3"], "seed is given twice"),
        (["seed=1,2", "update.learning_rate=1e-3,x"], "update.learning_rate"),
        (
            ["data.train=a b.jsonl,a_b.jsonl"],
            "two combinations would both be called train=a_b.jsonl",
        ),
    ],
)
def test_errors_come_before_any_training(tmp_path: Path, overrides: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ascent.sweep(tiny_recipe(tmp_path), overrides, run=tmp_path / "sweep", say=quiet)
    assert not (tmp_path / "sweep").exists()


def test_jobs_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="jobs=0, but at least 1"):
        ascent.sweep(tiny_recipe(tmp_path), ["seed=1,2"], jobs=0)


def test_the_same_call_continues(tmp_path: Path) -> None:
    recipe, folder = tiny_recipe(tmp_path), tmp_path / "sweep"
    said: list[str] = []

    def interrupt(text: str) -> None:
        said.append(text)
        if text.startswith("run 2 of 4"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ascent.sweep(recipe, SETTINGS, run=folder, progress=False, say=interrupt)
    assert [each.name for each in folder.iterdir()] == NAMES[:1]
    # as if the first had been killed after its first step
    (folder / NAMES[0] / "outcome.json").unlink()
    before = weights_of(folder / NAMES[0], 2)
    shutil.rmtree(folder / NAMES[0] / "checkpoints/2")
    found = ascent.sweep(recipe, SETTINGS, run=folder, progress=False, say=said.append)
    assert (
        len(read_run(folder / NAMES[0]).environment) == 2
        and weights_of(folder / NAMES[0], 2) == before
    )
    assert found.failures == {} and found.comparison is not None
    assert [each.state for each in found.comparison.runs] == ["finished"] * 4
    assert list(found.comparison.settings) == ["seed", "update.learning_rate"]
    assert [(each.label, len(each.runs)) for each in found.comparison.groups] == [
        ("learning_rate=0.003", 2),
        ("learning_rate=0.001", 2),
    ]
    assert (folder / "sweep.png").is_file()
    outcome = folder / NAMES[0] / "outcome.json"
    for reason, starts in (("policy/ref_kl is above run.max_ref_kl", 2), ("stopped by SIGTERM", 3)):
        shutil.rmtree(folder / NAMES[0] / "checkpoints/2", ignore_errors=True)
        outcome.write_text(
            json.dumps({**json.loads(outcome.read_text()), "ending": "stopped", "message": reason})
        )
        ascent.sweep(recipe, SETTINGS, run=folder, progress=False, say=quiet)
        assert (
            len(read_run(folder / NAMES[0]).environment) == starts
        )  # a run that ended by its own rule is kept
    said.clear()
    again = ascent.sweep(recipe, SETTINGS, run=folder, progress=False, say=said.append)
    assert again == found and sum("is finished" in text for text in said) == 4
    with pytest.raises(
        ValueError,
        match=r"seed=1 was trained with run\.steps=2, and this sweep has 3; give it another",
    ):
        ascent.sweep(recipe, [*SETTINGS[1:], "run.steps=3"], run=folder, progress=False, say=quiet)


def test_objects_are_trained_on_in_this_process_alone(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(8)]
    recipe = {
        **TINY,
        "data": {"train": rows, "batch_size": 4, "max_tokens": 64},
        "run": {"steps": 2, "save_every": 1},
    }
    folder = tmp_path / "sweep"
    found = ascent.sweep(recipe, {"seed": [1, 2]}, run=folder, progress=False, say=quiet)
    (folder / "seed=1/outcome.json").unlink()
    shutil.rmtree(folder / "seed=1/checkpoints/2")
    again = ascent.sweep(recipe, {"seed": [1, 2]}, run=folder, progress=False, say=quiet)
    assert again.failures == {} and again.comparison == found.comparison is not None
    with pytest.raises(
        ValueError, match=r"jobs=2 trains in other processes, which cannot get Python objects \("
    ):
        ascent.sweep(recipe, {"seed": [1, 2]}, run=folder, jobs=2, say=quiet)


def test_a_run_that_fails_is_reported_and_the_others_are_trained(tmp_path: Path) -> None:
    """One after the other and side by side: the same failure, the same weights."""
    recipe, broken = tiny_recipe(tmp_path), tmp_path / "broken.jsonl"
    broken.write_text("no JSON\n")
    overrides = ["run.steps=1", "run.evaluate_every=1", f"data.train=arithmetic:16,{broken}"]
    for jobs in (1, 2):
        lines: list[str] = []
        found = ascent.sweep(
            recipe, overrides, run=tmp_path / str(jobs), jobs=jobs, progress=False, say=lines.append
        )
        ((name, reason),) = found.failures.items()
        assert (
            "broken.jsonl" in name
            and "data.invalid_rows=skip" in reason
            and found.comparison is None
        )
        assert any("the sweep continues" in line for line in lines)
    assert "2 of 2 runs are left, 2 at a time; the output of each is in FOLDER.log" in lines
    assert "finished step 1 of 1" in (tmp_path / "2/train=arithmetic_16.log").read_text()
    one, two = (tmp_path / jobs / "train=arithmetic_16" for jobs in ("1", "2"))
    assert weights_of(one, 1) == weights_of(two, 1)
    assert (one / "config.yaml").read_text() == (two / "config.yaml").read_text()


def test_a_sweep_of_epochs_continues_and_refuses_other_settings(tmp_path: Path) -> None:
    """Recipes for files count epochs; a run's config has the steps that they were."""
    given = {
        "model.policy": "tiny:llama",
        "data.train": "sort_digits:8",
        "data.evaluate": None,
        "data.batch_size": 4,
    }
    recipe = {**given, "algorithm": "sft", "data.epochs": 1.0, "run.trackers": ["tensorboard"]}
    said: list[str] = []
    for _ in range(2):
        ascent.sweep(recipe, ["seed=1,2"], run=tmp_path / "sweep", progress=False, say=said.append)
    assert [line for line in said if line.endswith("is finished")] == [
        f"{tmp_path}/sweep/seed={n} is finished" for n in (1, 2)
    ]
    with pytest.raises(
        ValueError, match=r"was trained with data\.epochs=1\.0, and this sweep has 2"
    ):
        plan_runs({**recipe, "data.epochs": 2.0}, ["seed=1,2"], tmp_path / "sweep")
    with pytest.raises(
        ValueError, match=r"was trained with run.trackers=.*tensorboard.*, and this sweep has"
    ):
        plan_runs({**recipe, "run.trackers": []}, ["seed=1,2"], tmp_path / "sweep")


def test_a_setting_that_was_removed_is_another_setting(tmp_path: Path) -> None:
    recipe = {
        **SAMPLED,
        "rewards": [{"use": "verifier"}, {"use": "length", "target": 3, "weight": 0.1}],
    }
    for each in plan_runs(recipe, ["seed=1,2"], tmp_path):
        each.folder.mkdir()
        (each.folder / "config.yaml").write_text(as_yaml(each.plan.config))
    assert len(plan_runs(recipe, ["seed=1,2"], tmp_path)) == 2
    with pytest.raises(ValueError, match=r"was trained with rewards\[1\]"):
        plan_runs({**recipe, "rewards": [{"use": "verifier"}]}, ["seed=1,2"], tmp_path)


def test_values_in_brackets_and_quotes_are_tried(tmp_path: Path) -> None:
    runs = plan_runs(
        SAMPLED, ["rewards=[{use: verifier}],[{use: exact}]", "model='tiny:llama'"], tmp_path
    )
    assert [each.plan.config.rewards[0].use for each in runs] == ["verifier", "exact"]
    with pytest.raises(ValueError, match="seed is given twice"):
        plan_runs(TINY, ["seed=1,2", "seed=[3]"], tmp_path)


def test_rewards_are_bound_before_the_first_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="length needs the option target"):
        plan_runs(SAMPLED, ["seed=1,2", "rewards=[{use: length}]"], tmp_path)
