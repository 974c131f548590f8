"""The GSM8K study before it has a GPU: its recipes resolve, its reward and its conversions do what they say."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascent.api.train import plan_of

FOLDER = Path(__file__).parents[3] / "bench" / "gsm8k"
NAMES = [path.stem for path in FOLDER.glob("*.py")]


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its modules, imported as the scripts import each other, and forgotten afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("algorithm", ["grpo", "dapo", "ppo", "rloo"])
def test_recipes_resolve_with_one_update_and_no_kl(study: Any, algorithm: str, tmp_path: Path) -> None:
    settings = study("settings")
    where = settings.Study(tmp_path, tmp_path, tmp_path, tmp_path, settings.Settings())
    plan = plan_of(study("ours").gsm8k_recipe(where, algorithm, 1, 1e-5, 4))
    assert plan.config.update.epochs == plan.config.update.minibatches == 1
    assert plan.config.rollouts.prompts_per_step * plan.config.rollouts.group_size == 512
    assert plan.config.rollouts.temperature == 1 and plan.config.rollouts.dynamic_sampling_tries == 0
    assert plan.row.kl is None and "kl_penalty" not in {cell.name for cell in plan.row.reward_shaping}


def test_a_stage_with_other_numbers_is_its_row_otherwise(study: Any, tmp_path: Path) -> None:
    settings, ours = study("settings"), study("ours")
    where = settings.Study(tmp_path, tmp_path, tmp_path, tmp_path, settings.Settings())
    assert ours.OTHER_NUMBERS.keys() == settings.VARIANTS.keys() and set(settings.VARIANTS.values()) <= set(settings.RL)
    recipe = ours.gsm8k_recipe(where, "ppo", 1, 1e-5, 4)
    row, other = plan_of(recipe).row, plan_of(recipe | ours.OTHER_NUMBERS["ppo_lam1"]).row
    assert dict(other.advantage.numbers) == dict(row.advantage.numbers) | {"lam": 1.0}
    assert replace(other, advantage=row.advantage) == row


# What the study sets for itself: where things are, the order of its rows, when models are saved, its reward.
OWN = {"seed", "rewards", "model.policy", "model.dtype", "data.train", "data.shuffle", "data.epochs", "run.steps",
       "run.save_every", "run.keep"}  # fmt: skip


@pytest.mark.parametrize("name", ["gsm8k_sft", "gsm8k_grpo"])
def test_shipped_recipes_are_those_that_were_measured(study: Any, name: str, tmp_path: Path) -> None:
    settings, ours = study("settings"), study("ours")
    where = settings.Study(tmp_path, tmp_path, tmp_path, tmp_path, settings.Settings())
    budget = where.settings
    measured = (
        ours.sft_recipe(where, tmp_path, tmp_path, budget.sft_steps)
        if name == "gsm8k_sft"
        else ours.gsm8k_recipe(where, "grpo", 1, 3e-5, budget.steps)
    )
    shipped, own = plan_of(name), plan_of(measured)
    assert shipped.row == own.row
    configs = [flat(plan.config.model_dump(exclude={"cells"})) for plan in (shipped, own)]
    assert {key for key in configs[0] | configs[1] if configs[0].get(key) != configs[1].get(key)} <= OWN
    if name == "gsm8k_sft":
        assert shipped.config.data.epochs == budget.sft_epochs
    else:
        assert shipped.config.run.steps == budget.steps


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """By dotted key."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def test_the_reward_reads_the_last_number_after_the_mark(study: Any) -> None:
    reward = study("reward")
    assert reward.is_correct("6 * 7 = 42\n#### 42", "42") == reward.is_correct("#### $1,200.00", "1200") == 1
    assert reward.is_correct("#### 41 #### 42", "42") == 1
    assert reward.is_correct("42", "42") == reward.is_correct("#### none", "42") == 0
    chat = [[{"role": "assistant", "content": "#### -3"}]]
    assert reward.trl_correct(chat, ["-3"]) == reward.trl_correct(["#### -3"], ["-3"]) == [1]


def test_annotations_become_calls(study: Any) -> None:
    row = study("data")._with_calls("Q", "He has 2*3 = <<2*3=6>>6 cats.\n#### 6")
    contents = [(each["role"], each["content"]) for each in row["messages"][1:]]
    assert contents == [
        ("assistant", "He has 2*3 = <calculator>2*3</calculator>"), ("tool", "<result>6</result>"),
        ("assistant", "6 cats.\n#### 6"),
    ]  # fmt: skip


def results_of(seconds: float, accuracies: list[float]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A stage and the tests of its models, every two steps."""
    steps = range(2, 2 * len(accuracies) + 1, 2)
    rows = [{"step": step, "seconds": seconds * step} for step in range(1, steps[-1] + 1)]
    points = [
        {"step": step} | {kind: {"value": a, "low": a - 0.1, "high": a + 0.1} for kind in ("greedy", "mean@8")}
        for step, a in zip(steps, accuracies, strict=True)
    ]
    return {"steps": rows}, {"points": points}


def test_the_verdict(study: Any) -> None:
    """From .1 after SFT: ours to TRL's .3 after 3 of 4 steps of a second, TRL's took 4 steps of 10."""
    report = study("report")
    found = {"test_sft": results_of(1, [0.0, 0.1])[1]}
    for seed in (1, 2):
        found[f"grpo-{seed}"], found[f"test_grpo-{seed}"] = results_of(1.0, [0.2, 0.4])
        found[f"trl_grpo-{seed}"], found[f"test_trl_grpo-{seed}"] = results_of(10.0, [0.2, 0.3])
    found["rloo-1"] = found["grpo-1"] | results_of(1.0, [0.15, 0.2])[1]
    result = report.verdict(found)["mean@8"]
    assert result["seconds_to_trl_of_trl"] == {1: pytest.approx(3 / 40), 2: pytest.approx(3 / 40)}
    assert result["above_sft"] == ["grpo"]
    assert result["accuracy"]["grpo"][4] == {"mean": pytest.approx(0.4), "half_width": 0.0, "values": [0.4, 0.4]}
    assert report.seconds_to(report.points_of(found, "rloo-1"), 0.5, "greedy") is None
    assert report.seconds_to(report.points_of(found, "rloo-1"), 0.1, "greedy") == 0.0


def test_the_pilot_chooses_the_learning_rate(study: Any, tmp_path: Path) -> None:
    settings = study("settings")
    where = settings.Study(tmp_path, tmp_path, tmp_path, tmp_path, settings.Settings())
    with pytest.raises(ValueError, match=r"pilot-0\.json, pilot-1\.json, pilot-2\.json"):
        _ = where.learning_rate
    for place, (rate, accuracy) in enumerate(zip(settings.LEARNING_RATES, (0.2, 0.3, 0.1), strict=True)):
        where.write("pilot", place, {"learning_rate": rate, "accuracy": accuracy})
    assert where.learning_rate == settings.LEARNING_RATES[1]


def test_a_stage_that_was_stopped_after_its_run_takes_it_as_it_is(study: Any, tmp_path: Path) -> None:
    recipe = {"algorithm": "sft", "model.policy": "tiny:llama", "data.train": "sort_digits:8", "data.batch_size": 4}
    train = study("ours").train
    run = train({**recipe, "run.steps": 2}, tmp_path / "run")
    assert train(recipe, tmp_path / "run").metrics == run.metrics
