"""A step of several updates: what is counted is that of all, and the learning rate goes by the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascent

PEAK = 1e-3
RECIPE = {
    "algorithm": "dr_grpo",
    "model.policy": "tiny:llama",
    "data.train": "sort_digits:64",
    "data.evaluate": None,
    "rollouts.prompts_per_step": 4,
    "rollouts.group_size": 4,
    "rollouts.max_new_tokens": 8,
    "update.epochs": 1,
    "update.learning_rate": PEAK,
}


def steps_of(folder: Path, **options: Any) -> list[dict[str, float]]:
    """Scores of any two completions of a group differ, so every step has a gradient."""
    run = ascent.train(
        {**RECIPE, **options}, rewards=[by_place], run=folder, progress=False, say=lambda line: None
    )
    return [row for row in run.metrics if "optim/lr" in row]


def by_place(completions: list[str], **_: Any) -> list[float]:
    return [float(place % 4) for place in range(len(completions))]


def test_tokens_are_those_of_all_updates(tmp_path: Path) -> None:
    """The first step's rollouts are the same however they are cut; two epochs train each token twice."""
    whole, cut, twice = (
        steps_of(
            tmp_path / name,
            **{"run.steps": 1, "update.minibatches": minibatches, "update.epochs": epochs},
        )[0]
        for name, minibatches, epochs in (("whole", 1, 1), ("cut", 4, 1), ("twice", 4, 2))
    )
    assert (whole["optim/updates"], cut["optim/updates"], twice["optim/updates"]) == (1, 4, 8)
    assert whole["tokens/trained"] == cut["tokens/trained"] == twice["tokens/trained"] / 2 > 0
    assert (
        twice["tokens/run"] > 1.8 * cut["tokens/run"] >= 1.8 * whole["tokens/run"]
    )  # prompts are shared otherwise
    for row in (whole, cut, twice):
        assert row["time/tokens_per_s"] * row["time/step"] == pytest.approx(row["tokens/run"])


def test_updates_that_are_left_out_do_not_delay_the_learning_rate(tmp_path: Path) -> None:
    """`target_kl` ends nearly every step after few of its eight updates: the rate still falls to 0, and warms up in two
    steps. Of a step the mean over its updates is logged."""
    options = {
        "run.steps": 6,
        "update.minibatches": 4,
        "update.epochs": 2,
        "update.schedule": "linear",
    }
    rows = steps_of(
        tmp_path / "kl", **options, **{"update.target_kl": 1e-9, "update.learning_rate": PEAK}
    )
    updates = [row["optim/updates"] for row in rows]
    assert max(updates) < 8
    assert [row["optim/lr"] for row in rows] == pytest.approx(
        [PEAK * (1 - (8 * step + (count - 1) / 2) / 48) for step, count in enumerate(updates)]
    )
    warming = steps_of(
        tmp_path / "warm", **options, **{"update.target_kl": 1e-9, "update.warmup_steps": 2}
    )
    assert [row["optim/lr"] for row in warming[:2]] == pytest.approx(
        [
            PEAK * (8 * step + (row["optim/updates"] + 1) / 2) / 17
            for step, row in enumerate(warming[:2])
        ]
    )
    assert warming[2]["optim/lr"] == pytest.approx(
        PEAK * (1 - (warming[2]["optim/updates"] - 1) / 2 / 32)
    )


def test_a_resumed_run_has_the_learning_rate_of_its_step(tmp_path: Path) -> None:
    options = {
        "run.steps": 4,
        "update.minibatches": 2,
        "update.target_kl": 1e-9,
        "update.schedule": "cosine",
    }
    whole = steps_of(tmp_path / "whole", **options)
    calls = [lambda step, metrics: step == 2]
    ascent.train(
        {**RECIPE, **options},
        rewards=[by_place],
        run=tmp_path / "cut",
        callbacks=calls,
        progress=False,
    )
    run = ascent.resume(tmp_path / "cut", rewards=[by_place], progress=False)
    assert [row["optim/lr"] for row in run.metrics if "optim/lr" in row] == [
        row["optim/lr"] for row in whole
    ]
