"""Optimal values of prompts: estimated once from the reference, kept with the run, the same when estimated again."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from ascent.api.train import assemble, resume_run, train_plan
from ascent.config.load import nest_keys
from ascent.config.validate import validate
from ascent.plan.resolve import resolve
from ascent.setup.optimal_values import FILE, SAMPLES
from tests.end_to_end import rewarded
from tests.setup.runs import weights_of

SETTINGS = {
    "algorithm": "a2po",
    "model.policy": "tiny:llama",
    "data.train": "sort_digits:6",
    "rewards": [{"use": f"{rewarded.__file__}:shuffled"}],
    "rollouts.prompts_per_step": 4,
    "rollouts.max_new_tokens": 4,
    "run.steps": 2,
    "run.save_every": 1,
    "update.learning_rate": 1e-3,
}


def plan_of(**more: object):
    return resolve(validate(nest_keys({**SETTINGS, **more})))


def test_values_come_from_the_references_answers_and_lie_between_their_rewards(
    tmp_path: Path,
) -> None:
    """Rewards are 0 or 1: with k of 8 right, V* = .5 log((k e^2 + 8 - k) / 8)."""
    training = assemble(plan_of(), tmp_path)
    values = json.loads((tmp_path / FILE).read_text())["values"]
    possible = [0.5 * math.log((k * math.e**2 + SAMPLES - k) / SAMPLES) for k in range(SAMPLES + 1)]
    assert len(values) == 6 and len({round(value, 4) for value in values}) > 1
    assert all(min(abs(value - each) for each in possible) < 1e-6 for value in values)
    assert (
        f"optimal values of 6 prompts from {SAMPLES} answers each of the reference"
        in training.notes
    )
    batch = training.source.next(1)[0]
    own = batch["optimal_values_B"]
    assert {round(float(value), 5) for value in own} <= {round(value, 5) for value in values}
    for row in range(4):
        start = int(batch["segments"].offsets[row + 1]) - 1
        assert float(batch["advantages_T"][start]) == pytest.approx(
            float(batch["rewards_B"][row] - own[row])
        )


def test_of_other_rewards_they_are_estimated_again(tmp_path: Path) -> None:
    """Twice the reward is worth more than before; what was kept says nothing of it."""
    values = []
    for weight in (1.0, 1.0, 2.0):
        rewards = [{**SETTINGS["rewards"][0], "weight": weight}]  # type: ignore[index]
        assemble(plan_of(rewards=rewards), tmp_path)
        values.append(json.loads((tmp_path / FILE).read_text())["values"])
    assert values[0] == values[1]
    assert sum(values[2]) > sum(values[1])


def test_a_resumed_run_reads_them_and_estimates_the_same_where_they_are_gone(
    tmp_path: Path,
) -> None:
    train_plan(plan_of(), tmp_path / "run", say=lambda line: None)
    kept, final = (tmp_path / "run" / FILE).read_text(), weights_of(tmp_path / "run", 2)
    shutil.rmtree(tmp_path / "run/checkpoints/2")
    (tmp_path / "run" / FILE).unlink()
    assert resume_run(tmp_path / "run", say=lambda line: None) == 2
    assert (tmp_path / "run" / FILE).read_text() == kept
    assert weights_of(tmp_path / "run", 2) == final
