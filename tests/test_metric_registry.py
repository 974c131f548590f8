"""Every metric of every kind of run is in the registry (ascent/metrics.py)."""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ascent.api.train import train_plan
from ascent.config.load import merge_configs, nest_keys
from ascent.config.validate import validate
from ascent.metrics import EVAL, REGISTRY, find_metric, plotted
from ascent.plan import resolve
from ascent.runs.folder import RunFolder, read_run
from ascent.runs.terminal import SHOWN
from ascent.runs.warnings import RULES
from tests.setup.runs import TINY
from tests.setup.world import KINDS, furnished

# Kinds of tests/setup/world.py, and changes to their recipe. Every run evaluates.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {}),
    "grpo with a sampler that lags": (
        "grpo",
        {"rollouts.max_staleness": 1, "cells.rollout_correction.use": "token_truncate"},
    ),
    "ppo with a separate critic": ("ppo", {}),
    "ppo with a value head": (
        "ppo",
        {"model.critic": "head", "model.critic_from": None, "update.minibatches": 1},
    ),
    "instructgpt": ("instructgpt", {}),
    "online_dpo": ("grpo", {"algorithm": "online_dpo"}),
    "nash_md": ("grpo", {"algorithm": "nash_md", "rollouts.group_size": 1}),
    "xpo": ("grpo", {"algorithm": "xpo"}),
    "dpo": ("dpo", {}),
    "kto": ("dpo", {"algorithm": "kto"}),
    "sft": ("sft", {}),
    "reward_model": ("reward_model", {}),
    "kd": ("kd", {}),
    "tools": ("tools", {}),
}
IN_EVERY_RUN = {"tokens/run", "tokens/trained", "time/step", "optim/lr", "optim/grad_norm"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = furnished(tmp_path_factory.mktemp("world"))
        patch.syspath_prepend(str(folder))
        patch.setattr("ascent.runs.folder.draw", lambda *_, **__: None)
        yield folder


def logged(folder: Path, recipe: dict[str, Any]) -> tuple[set[str], list[str]]:
    """The names of the metrics of a run, and what it said."""
    said: list[str] = []
    train_plan(resolve(validate(recipe)), folder, say=said.append)
    names = {name for record in read_run(folder).metrics for name in record}
    return names - {"step", "timestamp"}, said


def check(names: set[str], said: list[str]) -> None:
    assert sorted(name for name in names if find_metric(name) is None) == []
    assert not [line for line in said if "not in the registry" in line]
    assert names >= IN_EVERY_RUN
    assert any(name.startswith(EVAL) for name in names)


@pytest.mark.parametrize("name", RUNS)
def test_every_metric_of_a_run_is_in_the_registry(name, world, tmp_path):
    kind, changes = RUNS[name]
    recipe = {
        key: value for key, value in (KINDS[kind](world) | changes).items() if value is not None
    }
    check(*logged(tmp_path / "run", nest_keys(recipe)))


def test_every_metric_of_a_process_reward_model_is_in_the_registry(tmp_path):
    data = {"train": "running_sum:16", "evaluate": "running_sum@heldout:8"}
    check(
        *logged(
            tmp_path / "run",
            merge_configs(TINY, {"algorithm": "prm", "data": data, "run": {"steps": 2}}),
        )
    )


def test_a_metric_outside_the_registry_is_reported_once(tmp_path):
    said: list[str] = []
    with RunFolder.create(tmp_path / "run", "algorithm: grpo\n", {}, say=said.append) as run:
        for step in (1, 2):
            run.log(
                step, {"reward/mean": 0.5, "policy/my_number": 1.0, f"{EVAL}policy/my_number": 1.0}
            )
        assert run.history()[-1]["policy/my_number"] == 1.0
    assert [line.split()[1] for line in sorted(said)] == [
        "eval/policy/my_number",
        "policy/my_number",
    ]
    assert all("is not in the registry" in line for line in said)


def test_terminal_curves_and_warnings_name_metrics_of_the_registry():
    names = {each.name for each in REGISTRY}
    read = {part for rule in RULES for part in rule.reads.split(" + ")}
    assert {name.removeprefix(EVAL) for name in SHOWN} | set(plotted()) | read <= names


def test_names_are_unique_and_sentences_complete():
    assert len({each.name for each in REGISTRY}) == len(REGISTRY)
    for each in REGISTRY:
        assert each.summary[0] in string.ascii_uppercase + string.digits and each.summary.endswith(
            "."
        ), each.name
        assert each.low <= each.high
