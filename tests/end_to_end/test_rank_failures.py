"""A part of a run breaks on one rank: all ranks end soon, one message names the rank, and the run can be resumed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import ascent.rollouts.source
from ascent.checkpoints import save
from ascent.engines.native.engine import NativeEngine
from ascent.parallel.ranks import Layout
from ascent.plan.resolve import Plan
from ascent.rollouts import score
from ascent.rollouts.evaluate import Evaluation
from ascent.runs.folder import read_run
from ascent.update.learner import LocalLearner
from tests.end_to_end.ranked import metrics_of, plan_of, resume_one, train_all
from tests.parallel.group import Group, run_in_ranks
from tests.wall_clock import wall_clock

# Where it breaks: the function that every rank calls there, and how often before it breaks in the second step.
PLACES: dict[str, tuple[Any, str, int]] = {
    "sampling": (NativeEngine, "sample", 2),  # the baseline of the evaluation, and the first step
    "scoring": (score, "score", 2),
    "preparing": (ascent.rollouts.source, "add_advantages", 1),
    "updating": (LocalLearner, "_apply", 2),
    "evaluating": (Evaluation, "__call__", 2),
    "saving": (save, "_write_tensors", 1),
}
FEATURES: dict[str, tuple[str, dict[str, Any], Layout]] = {
    "plain": ("grpo", {"update.minibatches": 2}, "auto"),
    "lora": ("grpo", {"update.minibatches": 2, "model.lora": 4}, "auto"),
    "critic": (
        "ppo",
        {"update.epochs": 1, "update.minibatches": 1},
        "auto",
    ),  # both learners update
    "refills": ("dapo", {"rollouts.dynamic_sampling_tries": 3}, "auto"),
    "sharded": ("grpo", {"update.minibatches": 2}, "sharded"),
}


def break_and_train(place: str, rank: int, plan: Plan, folder: Path, layout: Layout) -> None:
    """Train; on one rank the function of a place raises OSError where disks fill up, RuntimeError elsewhere."""
    owner, name, before = PLACES[place]
    whole, calls = getattr(owner, name), []

    def broken(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) > before:
            raise OSError("no space left") if place == "saving" else RuntimeError(f"{place} broke")
        return whole(*arguments, **options)

    if os.environ["RANK"] == str(rank):
        setattr(owner, name, broken)
    train_all({"run": plan}, folder, layout)


CASES = [("sampling", 1, "critic"), ("saving", 0, "lora"), ("updating", 0, "sharded")]
MORE = [(place, rank, name) for name in FEATURES for place in PLACES for rank in (0, 1)]


@wall_clock
@pytest.mark.parametrize(
    ("place", "rank", "feature"),
    [
        *CASES,
        *(pytest.param(*case, marks=pytest.mark.learning) for case in MORE if case not in CASES),
    ],
)
def test_what_breaks_on_one_rank_ends_all_and_is_said_once(
    place: str, rank: int, feature: str, tmp_path: Path
) -> None:
    row, changes, layout = FEATURES[feature]
    plan = plan_of(row, {"run.steps": 3, "run.save_every": 1, "run.evaluate_every": 1, **changes})
    began = time.monotonic()
    group = Group(
        2, tmp_path / "log", break_and_train, place, rank, plan, tmp_path / "broken", layout
    )
    assert group.wait(90) == [1, 1], group.said()
    words = "no space left" if place == "saving" else f"RuntimeError: {place} broke"
    found = read_run(tmp_path / "broken/run")
    assert found.state == "failed" and words in found.message, found.message
    assert rank == 0 or "rank 1" in found.message
    said = group.said()
    assert "is gone" not in said, said
    assert (tmp_path / "log/rank-0.log").read_text().count(words) >= 1
    assert time.monotonic() - began < 90

    if (place, rank, feature) == CASES[0]:  # and it can be continued, to the same bits
        run_in_ranks(2, tmp_path / "log-again", resume_one, tmp_path / "broken/run", layout)
        run_in_ranks(
            2, tmp_path / "log-whole", train_all, {"run": plan}, tmp_path / "whole", layout
        )
        files = [
            json.loads((tmp_path / name / "run/checkpoints/3/manifest.json").read_text())["files"]
            for name in ("broken", "whole")
        ]
        assert files[0] == files[1]


@wall_clock
@pytest.mark.parametrize(
    "layout", ["sharded", pytest.param("replicated", marks=pytest.mark.learning)]
)
def test_a_killed_rank_is_named_by_the_others(layout: Layout, tmp_path: Path) -> None:
    """In a divided model the others notice it inside a forward or backward pass."""
    run = tmp_path / "runs/run"
    plan = plan_of("sft", {"run.steps": 5000, "run.save_every": 5000, "run.evaluate_every": 5000})
    group = Group(2, tmp_path / "log", train_all, {"run": plan}, run.parent, layout)
    while not (run / "metrics.jsonl").exists() or len(metrics_of(run)) < 3:
        time.sleep(0.05)
    os.kill(group.ranks[1].pid, signal.SIGKILL)
    began = time.monotonic()
    assert group.wait(60) == [1, -signal.SIGKILL], group.said()
    assert time.monotonic() - began < 30
    found = read_run(run)
    assert found.state == "failed" and "rank 1 is gone" in found.message, found.message


def die_at_auxiliary_text(plan: Plan, folder: Path) -> None:
    """Train; rank 1 kills itself where the second update is about to run its auxiliary text."""
    whole, calls = LocalLearner._share, []

    def share(*arguments: Any) -> Any:
        calls.append("share")
        if len(calls) == 4:  # every update divides its micro-batches, then its text
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*arguments)

    if os.environ["RANK"] == "1":
        LocalLearner._share = share  # type: ignore[method-assign]
    train_all({"run": plan}, folder, "sharded")


@pytest.mark.learning
def test_a_rank_killed_at_the_auxiliary_text_is_named(tmp_path: Path) -> None:
    plan = plan_of("instructgpt", {"model.critic": "head"})
    group = Group(2, tmp_path / "log", die_at_auxiliary_text, plan, tmp_path / "runs")
    assert group.wait(120) == [1, -signal.SIGKILL], group.said()
    found = read_run(tmp_path / "runs/run")
    assert found.state == "failed" and "rank 1 is gone" in found.message, found.message
