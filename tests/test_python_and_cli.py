"""Each command is a Python function: same parameters, same result."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import ascent
from ascent.api.label import label
from ascent.api.launch import set_samplers
from ascent.api.quickstart import quickstart
from ascent.api.serve import serve, serve_reward
from ascent.cli.main import app
from ascent.feedback.preference_log import read
from ascent.models.tiny import create
from ascent.runs.folder import read_run
from ascent.view.page import view
from tests.setup.runs import tiny_recipe

GROUP: Any = typer.main.get_command(app)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(ascent, name)
        for name in ("train", "resume", "iterate", "check", "evaluate", "compare")
    },
    **{name: getattr(ascent, name) for name in ("sample", "score", "export", "collect", "sweep")},
    "compare-runs": ascent.compare_runs,
    **{name: getattr(ascent, name) for name in ("replay", "bisect", "forecast")},
    "diagnose": ascent.diagnose_run,
    "forecast-score": ascent.forecast_score,
    "quickstart": quickstart,
    "serve": serve,
    "serve-reward": serve_reward,
    "samplers": set_samplers,
    "label": label,
    "view": view,
}
# say: a command prints. person: a command asks at the terminal. --json, --show: a function returns an object.
PYTHON_ONLY, COMMAND_ONLY = {"say", "person"}, {"as_json", "show"}
# A terminal has words alone: objects in place of names are Python's.
OBJECTS = {"model", "tokenizer", "data", "eval_data", "rewards", "env", "callbacks"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_and_options_are_the_same(name: str) -> None:
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    options = {each.name: each for each in GROUP.commands[name].params if each.name != "help"}
    objects = OBJECTS if name in ("train", "resume", "replay") else set()
    assert set(parameters) - PYTHON_ONLY - objects == set(options) - COMMAND_ONLY
    for key in set(parameters) & set(options):
        default = parameters[key].default
        if default is not inspect.Parameter.empty and options[key].default is not None:
            assert options[key].default == default, key


@pytest.mark.parametrize("name", FUNCTIONS)
def test_documentation_says_what_it_takes_returns_and_how_it_is_called(name: str) -> None:
    function = FUNCTIONS[name]
    text = inspect.getdoc(function) or ""
    first = text.partition("\n\n")[0]
    assert first.endswith(".") and "\n" not in first
    for parameter in inspect.signature(function).parameters:
        assert parameter in text, parameter
    assert ("Returns" in text) == (inspect.signature(function).return_annotation != "None")
    assert f"{function.__name__}(" in text


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, ascent; print('torch' in sys.modules, callable(ascent.train), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True"]


def call(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("models")
    return str(create(root / "a", seed=0)), str(create(root / "b", seed=1))


def losses(folder: Path) -> list[float]:
    return [row["loss/total"] for row in read_run(folder).metrics]


def test_train_and_resume(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    run = ascent.train(
        recipe, {"run.steps": 2, "run.save_every": 1}, run=tmp_path / "python", say=quiet
    )
    call("train", recipe, "run.steps=2", "run.save_every=1", "--run", str(tmp_path / "command"))
    assert run.state == "finished"
    assert losses(tmp_path / "python") == losses(tmp_path / "command")
    assert (tmp_path / "python/config.yaml").read_text() == (
        tmp_path / "command/config.yaml"
    ).read_text()
    for name in ("python", "command"):
        config = tmp_path / name / "config.yaml"
        config.write_text(config.read_text().replace("steps: 2", "steps: 3"))
    assert ascent.resume(tmp_path / "python", say=quiet).state == "finished"
    call("resume", str(tmp_path / "command"))
    assert len(losses(tmp_path / "python")) == 3
    assert losses(tmp_path / "python") == losses(tmp_path / "command")


def test_a_recipe_may_be_a_mapping(tmp_path: Path) -> None:
    recipe = {"algorithm": "sft", "model": {"policy": "tiny:llama"}, "data.train": "arithmetic:8"}
    found = ascent.check(recipe, {"update.learning_rate": 1e-5, "data.batch_size": 2})
    assert 0 < found.trained < found.tokens
    with pytest.raises(
        ValueError, match=r"update\.lr is not a key; did you mean update\.learning_rate"
    ):
        ascent.train(recipe, {"update.lr": 1.0}, run=tmp_path / "r")
    with pytest.raises(ValueError, match="a plan is resolved already"):
        ascent.check(ascent.resolve(ascent.load_config(tiny_recipe(tmp_path))), ["run.steps=2"])


def test_check(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    found = ascent.check(recipe, ["run.steps=7"])
    shown = call("check", recipe, "run.steps=7")
    assert found.steps == 7 and "7 steps take about" in shown
    assert (
        f"{found.microbatches} micro-batches, {found.tokens} tokens, {found.trained} trained"
        in shown
    )
    assert f"{found.loss:.4g}, {found.grad_norm:.4g}" in shown


def test_evaluate(models: tuple[str, str]) -> None:
    found = ascent.evaluate(models[0], "arithmetic", limit=3, samples=2, max_new_tokens=3)
    words = ["--limit", "3", "--samples", "2", "--max-new-tokens", "3", "--json"]
    assert json.loads(call("evaluate", models[0], "arithmetic", *words)) == json.loads(
        json.dumps(found.as_dict())
    )


def test_compare(models: tuple[str, str]) -> None:
    found = ascent.compare(*models, "style", "simulated:style", limit=3, max_new_tokens=4)
    words = ["--judge", "simulated:style", "--limit", "3", "--max-new-tokens", "4", "--json"]
    assert json.loads(call("compare", *models, "style", *words)) == json.loads(
        json.dumps(found.as_dict())
    )


def test_sweep_and_compare_runs(tmp_path: Path) -> None:
    recipe, words = tiny_recipe(tmp_path), ["run.steps=2", "seed=1,2"]
    found = ascent.sweep(
        recipe, {"run.steps": 2, "seed": [1, 2]}, run=tmp_path / "python", progress=False, say=quiet
    )
    shown = call("sweep", recipe, *words, "--run", str(tmp_path / "command"), "--no-progress")
    assert found.comparison is not None
    last = found.comparison.groups[0].scores["eval/loss/total"].last
    assert f"{last.value:.4g}" in shown and f"{last.low:.3g} to {last.high:.3g}" in shown
    for seed in (1, 2):
        assert losses(tmp_path / f"python/seed={seed}") == losses(tmp_path / f"command/seed={seed}")
    compared = ascent.compare_runs(
        [tmp_path / "python"], metrics=["loss/total"], plot=tmp_path / "c.svg"
    )
    options = ["--metric", "loss/total", "--plot", str(tmp_path / "c.svg"), "--json"]
    printed = json.loads(call("compare-runs", str(tmp_path / "python"), *options))
    assert printed == json.loads(json.dumps(compared.as_dict()))


def test_sample(models: tuple[str, str]) -> None:
    found = list(ascent.sample(models[0], ["1+1=", "2+2="], samples=2, max_new_tokens=3, seed=1))
    shown = call(
        "sample",
        models[0],
        "1+1=",
        "2+2=",
        "--samples",
        "2",
        "--max-new-tokens",
        "3",
        "--seed",
        "1",
    )
    lines = [
        f"{each.prompt} -> {each.completion}  [{each.tokens} tokens, {each.stop}]\n"
        for each in found
    ]
    assert shown == "".join(lines)


def test_score(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, algorithm="reward_model")
    ascent.train(recipe, ["run.steps=1"], run=tmp_path / "rm", say=quiet)
    found = list(ascent.score(str(tmp_path / "rm"), "arithmetic@heldout:3"))
    shown = [
        json.loads(line)
        for line in call("score", str(tmp_path / "rm"), "arithmetic@heldout:3").splitlines()
    ]
    assert shown == json.loads(json.dumps([asdict(each) for each in found]))


def test_export(models: tuple[str, str], tmp_path: Path) -> None:
    ascent.export(models[0], tmp_path / "python")
    call("export", models[0], str(tmp_path / "command"))
    python, command = (
        {f.name: f.read_bytes() for f in (tmp_path / n).iterdir()} for n in ("python", "command")
    )
    assert python == command


def test_collect(models: tuple[str, str], tmp_path: Path) -> None:
    judge = {"judge": "simulated:style", "max_new_tokens": 4}
    found = ascent.collect(models, "style:4", out=tmp_path / "python.jsonl", **judge, say=quiet)
    words = [
        "--judge",
        "simulated:style",
        "--max-new-tokens",
        "4",
        "--out",
        str(tmp_path / "command.jsonl"),
    ]
    shown = call("collect", *models, "style:4", *words)
    assert found.finished and f"has answered {found.done} of {found.questions} questions" in shown
    python, command = (
        [r | {"time": ""} for r in read(tmp_path / f"{n}.jsonl")] for n in ("python", "command")
    )
    assert python == command
    again = ascent.collect(models, "style:4", out=tmp_path / "python.jsonl", **judge, say=quiet)
    assert again == replace(found, unjudged=again.unjudged)
    with pytest.raises(ValueError, match="nobody is there to be asked"):
        ascent.collect(models, "style:4", out=tmp_path / "python.jsonl")


def test_iterate(models: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def code(rollout):\n    return float(sum(map(ord, rollout.text)))\n"
    )
    recipe = {
        "rounds": 1,
        "sft": models[0],
        "collect.prompts": "style:4",
        "collect.samples": 2,
        "collect.annotator": f"{tmp_path}/mine.py:code",
        "collect.max_new_tokens": 4,
        "measure.prompts": "style@heldout:3",
        "measure.judge": "simulated:style",
        "measure.max_new_tokens": 4,
        "policy": {
            "algorithm": "dpo",
            "data": {"max_tokens": 64, "batch_size": 2},
            "run": {"steps": 2},
        },
    }
    (found,) = ascent.iterate(recipe, {"seed": 3}, run=tmp_path / "python", say=quiet)
    call("iterate", str(tmp_path / "python/rounds.yaml"), "--run", str(tmp_path / "command"))
    assert losses(found.policy) == losses(tmp_path / "command/round-1/policy")
    measured = json.loads((tmp_path / "command/round-1/measured.json").read_text())
    assert found.comparison is not None and measured["win_rate"] == found.comparison["win_rate"]
