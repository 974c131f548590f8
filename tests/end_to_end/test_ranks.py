"""The same run on 1, 2 and 4 ranks, in both layouts; killed at any instant; resumed by another number of ranks."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from ascent.algorithms import TABLE
from ascent.api.export import export
from ascent.parallel.ranks import Layout
from ascent.plan.resolve import Plan
from ascent.runs.folder import read_run
from tests.end_to_end import ranked
from tests.end_to_end.ranked import (
    GRADIENT_DESCENT,
    differences,
    plan_of,
    resume_one,
    tokens_of,
    train_all,
    weight_differences,
)
from tests.parallel.group import Group, run_in_ranks

# One row of every kind of source, of step statistics, and of helpers (reference, teacher, critic, opponent).
SOME = (
    "sft",
    "gkd",
    "dpo",
    "aot",
    "kto",
    "bco",
    "reward_model",
    "prm",
    "grpo",
    "instructgpt",
    "xpo",
    "nash_md",
    "remax",
    "kl_cov",
    "clip_cov",
)
SHARDED: Layout = "sharded"


def plans_of(rows: Sequence[str], folder: Path) -> dict[str, Plan]:
    """Of runs whose completions differ in length."""
    policy = {"model.policy": str(ranked.create_policy(folder / "policy"))}
    return {
        row: plan_of(row, GRADIENT_DESCENT | (policy if TABLE[row].samples else {})) for row in rows
    }


def compare_rows(plans: Mapping[str, Plan], alone: Path, several: Path) -> None:
    found = {row: differences(alone / row, several / row) for row in plans}
    assert {row: each for row, each in found.items() if each} == {}
    for row in plans:
        if TABLE[row].samples:
            assert tokens_of(alone / row) == tokens_of(several / row), row


def train_and_compare(
    rows: Sequence[str], count: int, folder: Path, layout: Layout = "auto"
) -> None:
    """Train every row alone and on `count` ranks."""
    plans = plans_of(rows, folder)
    run_in_ranks(1, folder / "log-1", train_all, plans, folder / "1")
    run_in_ranks(count, folder / "log", train_all, plans, folder / "several", layout)
    compare_rows(plans, folder / "1", folder / "several")


def test_some_rows_are_the_same_on_two_ranks(tmp_path: Path) -> None:
    train_and_compare(SOME, 2, tmp_path)


def test_some_rows_are_the_same_on_four_ranks(tmp_path: Path) -> None:
    train_and_compare(["dpo", "grpo", "kl_cov"], 4, tmp_path)


def test_some_rows_are_the_same_sharded_over_two_ranks(tmp_path: Path) -> None:
    train_and_compare(["dpo", "kto", "grpo", "instructgpt"], 2, tmp_path, SHARDED)


@pytest.fixture(scope="module")
def every_row(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Plan], Path]:
    """Every row, trained by one process."""
    folder = tmp_path_factory.mktemp("every_row")
    plans = plans_of([*TABLE], folder)
    run_in_ranks(1, folder / "log", train_all, plans, folder / "1", seconds=1500)
    lengths = {
        len(each) for row in plans if TABLE[row].samples for each in tokens_of(folder / "1" / row)
    }
    assert len(lengths) > 3, lengths
    return plans, folder / "1"


@pytest.mark.learning
@pytest.mark.parametrize("layout", ["replicated", SHARDED])
@pytest.mark.parametrize("count", [2, 4])
def test_every_row_is_the_same_on_any_number_of_ranks(
    count: int, layout: Layout, every_row: tuple[dict[str, Plan], Path], tmp_path: Path
) -> None:
    plans, alone = every_row
    run_in_ranks(count, tmp_path / "log", train_all, plans, tmp_path, layout, seconds=1500)
    compare_rows(plans, alone, tmp_path)


@pytest.mark.learning
@pytest.mark.parametrize("count", [2, 4])
def test_twenty_steps_of_grpo_sample_the_same_tokens(count: int, tmp_path: Path) -> None:
    plan = plan_of("grpo", {"run.steps": 20, "run.save_every": 20, "run.evaluate_every": 20})
    for number in (1, count):
        run_in_ranks(
            number, tmp_path / f"log-{number}", train_all, {"grpo": plan}, tmp_path / str(number)
        )
    one, other = tmp_path / "1/grpo", tmp_path / str(count) / "grpo"
    assert tokens_of(one) == tokens_of(other)
    assert weight_differences(one, other, step=20, tolerance=1e-5) == []


def outcome(run: Path, step: int) -> dict[str, Any]:
    """The files of a checkpoint with their sha256, and all metrics. An adapter's config names the run's own folder."""
    files = json.loads((run / f"checkpoints/{step}/manifest.json").read_text())["files"]
    files = {name: each for name, each in files.items() if not name.endswith("adapter_config.json")}
    return {"files": files, "metrics": ranked.metrics_of(run)}


FEATURES: dict[str, tuple[str, dict[str, Any], Layout]] = {
    "grpo": ("grpo", {"update.minibatches": 2}, "auto"),
    "ppo": ("ppo", {"update.critic_warmup_steps": 1}, "auto"),
    "dpo": ("dpo", {}, "auto"),
    "lora": ("grpo", {"model.lora": 4}, "auto"),
    "sharded": ("ppo", {}, SHARDED),
    "sharded lora": ("dpo", {"model.lora": 4}, SHARDED),
    "half": ("grpo", {"model.dtype": "bfloat16"}, "auto"),
    "checkpointing": ("grpo", {"model.gradient_checkpointing": True}, SHARDED),
    "lora and value head": ("ppo", {"model.lora": 4, "model.critic": "head"}, "auto"),
    "refills": (
        "dapo",
        {
            "rewards": [{"use": f"{ranked.REWARDED}:even"}],
            "rollouts.group_size": 2,
            "rollouts.dynamic_sampling_tries": 3,
        },
        SHARDED,
    ),
    "kto": ("kto", {}, SHARDED),
    "turns": ("grpo", ranked.TURNS, "auto"),
    "stale": ("grpo", {"rollouts.max_staleness": 1}, SHARDED),
}


@pytest.mark.parametrize(
    ("feature", "kills"),
    [
        ("ppo", 2),
        ("sharded", 1),
        *(pytest.param(name, 4, marks=pytest.mark.learning) for name in FEATURES),
    ],
)
def test_killed_at_random_instants_it_ends_in_the_same_bits(
    feature: str, kills: int, tmp_path: Path
) -> None:
    row, changes, layout = FEATURES[feature]
    plan = plan_of(row, {"run.steps": 6, "run.save_every": 2, "run.evaluate_every": 3, **changes})
    run_in_ranks(2, tmp_path / "log", train_all, {"run": plan}, tmp_path / "undisturbed", layout)
    expected, rng = outcome(tmp_path / "undisturbed/run", 6), random.Random(feature)
    for number in range(kills):
        run = tmp_path / f"killed-{number}" / "run"
        group = Group(2, tmp_path / f"log-{number}", train_all, {"run": plan}, run.parent, layout)
        while not (run / "metrics.jsonl").exists() or len(ranked.metrics_of(run)) < 1 + number % 4:
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.5))
        killed = [0, 1] if number % 3 == 2 else [number % 2]
        for rank in killed:
            if group.ranks[rank].is_alive():
                os.kill(group.ranks[rank].pid, signal.SIGKILL)
        group.wait(40)  # all of them end
        if read_run(run).state != "finished":
            run_in_ranks(2, tmp_path / f"log-{number}-again", resume_one, run, layout)
        assert outcome(run, 6) == expected, number


@pytest.mark.parametrize(
    ("before", "after", "feature"),
    [
        (2, 1, "ppo"),
        (1, 2, "ppo"),
        *(
            pytest.param(before, after, name, marks=pytest.mark.learning)
            for before, after in ((2, 1), (1, 2), (2, 4))
            for name in FEATURES
        ),
    ],
)
def test_another_number_of_ranks_continues(
    before: int, after: int, feature: str, tmp_path: Path
) -> None:
    """The weights as loaded are equal bit for bit, which the state's fingerprints hold, and ten steps later close."""
    row, changes, layout = FEATURES[feature]
    steps = 12
    settings = {
        "run.save_every": 2,
        "run.evaluate_every": 4,
        "run.keep": 9,
        "update.learning_rate": 1e-4,
    }
    settings |= {
        "update.adam_eps": 3e-5,
        **changes,
    }  # a smaller one amplifies the rounding of tiny gradients
    plan = plan_of(row, {"run.steps": steps, **settings})
    whole, other = tmp_path / "a/run", tmp_path / "b/run"
    run_in_ranks(before, tmp_path / "log-a", train_all, {"run": plan}, whole.parent, layout)
    shutil.copytree(whole, other)
    for step in range(4, steps + 1, 2):
        shutil.rmtree(other / f"checkpoints/{step}")
    (other / "outcome.json").unlink()
    run_in_ranks(after, tmp_path / "log-b", resume_one, other, layout)
    if changes.get("model.dtype") != "bfloat16":
        assert weight_differences(whole, other, step=steps) == []
    if "model.lora" not in changes:
        plain = export(str(other), tmp_path / "plain")
        AutoModelForCausalLM.from_pretrained(plain)


def test_a_signal_on_any_rank_saves_and_stops_all(tmp_path: Path) -> None:
    plan = plan_of("sft", {"run.steps": 5000, "run.save_every": 5000, "run.evaluate_every": 5000})
    run = tmp_path / "runs/run"
    group = Group(2, tmp_path / "log", train_all, {"run": plan}, run.parent)
    while not (run / "metrics.jsonl").exists() or len(ranked.metrics_of(run)) < 2:
        time.sleep(0.05)
    os.kill(group.ranks[1].pid, signal.SIGTERM)
    assert group.wait(60) == [0, 0], group.said()
    found = read_run(run)
    assert (found.state, found.message) == ("stopped", "stopped by SIGTERM on rank 1")
    assert found.checkpoints == [int(found.metrics[-1]["step"])]


@pytest.mark.parametrize("staleness", [0, pytest.param(1, marks=pytest.mark.learning)])
def test_servers_sample_for_all_ranks(staleness: int, tmp_path: Path) -> None:
    """Rank 0 starts one for the run. With stale rollouts nothing overlaps, which changes no result."""
    changes = {"run.steps": 3, "rollouts.max_staleness": staleness}
    plans = {
        engine: plan_of("grpo", {**changes, "rollouts.engine": engine})
        for engine in ("native", "remote")
    }
    run_in_ranks(2, tmp_path / "log", train_all, plans, tmp_path)
    native, remote = (outcome(tmp_path / engine, 3) for engine in plans)
    assert native["files"]["model/model.safetensors"] == remote["files"]["model/model.safetensors"]
    assert tokens_of(tmp_path / "native") == tokens_of(tmp_path / "remote")
    assert not (tmp_path / "remote/weights").exists()


def test_an_environment_with_servers_is_refused_on_several_ranks(tmp_path: Path) -> None:
    env = {"use": f"{ranked.REWARDED}:again", "max_turns": 2}
    plan = plan_of(
        "grpo", {"rollouts.engine": "remote", "env": env, "update.tokens_per_microbatch": 512}
    )
    group = Group(2, tmp_path / "log", train_all, {"run": plan}, tmp_path / "runs")
    assert group.wait(90) == [1, 1]
    assert "2 ranks with rollouts.engine=remote and an environment" in group.said()
