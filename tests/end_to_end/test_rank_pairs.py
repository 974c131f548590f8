"""Features in pairs on several ranks: each combination against one process, and saved and resumed by other numbers of
ranks and in the other layout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ascent.algorithms import TABLE
from ascent.models.load import load
from ascent.models.tiny import create
from ascent.parallel.ranks import Layout
from ascent.plan.resolve import Plan
from tests.end_to_end.ranked import (
    GRADIENT_DESCENT,
    REWARDED,
    TURNS,
    create_policy,
    differences,
    plan_of,
    resume_all,
    tokens_of,
    train_all,
    weight_differences,
)
from tests.parallel.group import run_in_ranks

pytest.importorskip("peft")

LORA = {"model.lora": 4}
HEAD = {"model.critic": "head"}
RECOMPUTED = {"model.gradient_checkpointing": True}
EVEN = {"rewards": [{"use": f"{REWARDED}:even"}]}  # some groups have no variance
REFILLS = {**EVEN, "rollouts.group_size": 2, "rollouts.dynamic_sampling_tries": 3}
STALE = {"rollouts.max_staleness": 1}
UPDATES = {"update.epochs": 2, "update.minibatches": 2}
BEST = {"run.keep_best": 1, "run.best_metric": "reward/mean"}
SCORED = {"model.reward_model": "scored", "rewards": []}
# Row and changes; "scored" and "experts" stand for models that are made first.
COMBINATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "lora, value head": ("ppo", {**LORA, **HEAD, **UPDATES}),
    "lora, critic, warmup": ("ppo", {**LORA, "update.critic_warmup_steps": 1}),
    "lora, value head, recomputation, reward model": (
        "ppo",
        {**LORA, **HEAD, **RECOMPUTED, **SCORED},
    ),
    "value head, auxiliary text": ("instructgpt", HEAD),
    "critic, bootstrap, stale": (
        "ppo",
        {
            "rollouts.truncated_reward": "bootstrap",
            "cells.reward_shaping.eos_replace": False,
            **STALE,
        },
    ),
    "critic, KL controller, updates": (
        "ppo",
        {"cells.kl_controller": {"use": "ziegler_sequence", "horizon": 16}, **UPDATES},
    ),
    "refills, updates, lora": ("dapo", {**REFILLS, **UPDATES, **LORA}),
    "refills, stale, correction": (
        "dapo",
        {**REFILLS, **STALE, "cells.rollout_correction.use": "token_truncate"},
    ),
    "refills, turns": ("dapo", {**REFILLS, **TURNS}),
    "turns, lora, recomputation": ("grpo", {**TURNS, **LORA, **RECOMPUTED}),
    "turns, stale, best": ("grpo", {**TURNS, **STALE, **BEST}),
    "shared prefixes, recomputation, updates": ("grpo", {**RECOMPUTED, **UPDATES}),
    "best of group, filters, refills": (
        "grpo_passk",
        {**REFILLS, "cells.filter.not_truncated": {}, "cells.filter.nonzero_variance": {}},
    ),
    "pairs of four, lora": ("online_dpo", {**LORA, "rollouts.group_size": 4}),
    "samples of the reference, lora": ("xpo", LORA),
    "opponent, lora": ("nash_md", LORA),
    "optimal values, lora": ("a2po", LORA),
    "greedy baseline, turns": ("remax", TURNS),
    "teacher, lora": ("rlsd", LORA),
    "one prompt": (
        "grpo",
        {"rollouts.prompts_per_step": 1, "data.evaluate": "sort_digits@heldout:1"},
    ),
    "early stopping, updates": ("grpo", {**UPDATES, "update.target_kl": 1e-4}),
    "reference KL limit": ("grpo", {"run.max_ref_kl": 1e-4}),
    "experts, replay, updates": (
        "grpo",
        {"model.policy": "experts", "model.routing_replay": True, **UPDATES},
    ),
    "unscored, lora": ("grpo", {"rewards": [{"use": f"{REWARDED}:sometimes"}], **LORA}),
    "other engine, lora, value head": ("ppo", {"rollouts.engine": "hf", **LORA, **HEAD}),
    "one record": ("sft", {"data.batch_size": 1}),
    "mixed data, lora, recomputation": (
        "sft",
        {"data.mix": [{"use": "running_sum:20", "share": 0.3}], **LORA, **RECOMPUTED},
    ),
    "unpaired, lora": ("kto", LORA),
    "running mean, recomputation": ("bco", RECOMPUTED),
    "pairs from a file, lora, best": ("dpo", {**LORA, "run.keep_best": 1}),
    "reward model, lora, best": (
        "reward_model",
        {**LORA, "run.keep_best": 1, "run.best_metric": "preference/accuracy"},
    ),
    "on-policy distillation, lora": ("gkd", LORA),
}
LAYOUTS: tuple[Layout, ...] = ("replicated", "sharded")
QUICK = "lora, value head, recomputation, reward model"


def plan_with(name: str, folder: Path) -> Plan:
    row, changes = COMBINATIONS[name]
    settings = {**GRADIENT_DESCENT, "run.keep": 9, "run.steps": 3, "run.save_every": 1}
    if TABLE[row].samples:
        settings["model.policy"] = str(create_policy(folder / "policy"))
    settings |= changes
    if settings.get("model.policy") == "experts":
        settings["model.policy"] = str(
            create(folder / "experts", family="qwen3_moe", hidden=32, layers=2, seed=0)
        )
    if "model.reward_model" in settings:
        load(create(folder / "trunk", seed=5), head="scalar", seed=9).save(folder / "scored")
        settings["model.reward_model"] = str(folder / "scored")
    return plan_of(row, settings)


def files_of(run: Path, step: int) -> Mapping[str, Any]:
    """With their sha256. An adapter's config names the run's own folder."""
    files = json.loads((run / f"checkpoints/{step}/manifest.json").read_text())["files"]
    return {name: each for name, each in files.items() if not name.endswith("adapter_config.json")}


def train(plans: Mapping[str, Plan], folder: Path, layouts: Sequence[Layout] = LAYOUTS) -> Path:
    """By one process, and by two ranks in each layout."""
    run_in_ranks(1, folder / "log-1", train_all, plans, folder / "1", seconds=900)
    for layout in layouts:
        run_in_ranks(
            2, folder / f"log-{layout}", train_all, plans, folder / layout, layout, seconds=900
        )
    return folder


def last_step(run: Path) -> int:
    """Some runs end early."""
    return max(int(each.name) for each in (run / "checkpoints").iterdir() if each.name.isdigit())


def check_trained(
    plans: Mapping[str, Plan], folder: Path, layouts: Sequence[Layout] = LAYOUTS
) -> None:
    found: dict[tuple[str, str], list[str]] = {}
    for name, plan in plans.items():
        alone = folder / "1" / name
        for layout in layouts:
            other = folder / layout / name
            found[name, layout] = differences(alone, other, step=last_step(alone), metrics=1e-5)
            if plan.row.samples and tokens_of(alone) != tokens_of(other):
                found[name, layout].append("other tokens")
    assert {case: each for case, each in found.items() if each} == {}


def resume(
    plans: Mapping[str, Plan], saved: Path, to: Path, count: int, layout: Layout
) -> list[str]:
    """Copies of runs, resumed after their first step; returns which they are."""
    names = [name for name in plans if last_step(saved / name) > 1]
    for name in names:
        shutil.copytree(saved / name, to / name)
        (to / name / "outcome.json").unlink()
        for step in range(2, last_step(saved / name) + 1):
            shutil.rmtree(to / name / f"checkpoints/{step}")
    run_in_ranks(count, to / "log", resume_all, [to / name for name in names], layout, seconds=900)
    return names


def check_resumed(plans: Mapping[str, Plan], folder: Path) -> None:
    """By the ranks that saved it: to the same bits. By more ranks, in the other layout: to rounding."""
    exact, other = folder / "exact", folder / "other"
    for name in resume(plans, folder / "sharded", exact, 2, "sharded"):
        last = last_step(exact / name)
        assert files_of(exact / name, last) == files_of(folder / "sharded" / name, last), name
    for name in resume(plans, folder / "replicated", other, 4, "sharded"):
        assert (
            weight_differences(folder / "1" / name, other / name, step=last_step(other / name))
            == []
        ), name


def test_a_combination_is_the_same_sharded_over_two_ranks(tmp_path: Path) -> None:
    plans = {QUICK: plan_with(QUICK, tmp_path / "models")}
    check_trained(plans, train(plans, tmp_path, ["sharded"]), ["sharded"])


@pytest.fixture(scope="module")
def every_combination(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Plan], Path]:
    folder = tmp_path_factory.mktemp("pairs")
    plans = {name: plan_with(name, folder / "models") for name in COMBINATIONS}
    return plans, train(plans, folder)


@pytest.mark.learning
def test_every_combination_is_the_same_on_two_ranks(
    every_combination: tuple[dict[str, Plan], Path],
) -> None:
    check_trained(*every_combination)


@pytest.mark.learning
def test_every_combination_is_resumed(every_combination: tuple[dict[str, Plan], Path]) -> None:
    check_resumed(*every_combination)
