"""Forecasts of cost are near what happens; forecasts of scores say so where nothing can be known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import ascent
from ascent.api import forecast as forecasts
from ascent.cli.main import app
from ascent.config.load import merge_configs
from ascent.runs.folder import read_run
from ascent.setup import evaluation
from tests.api.test_diagnose import ROLLOUTS
from tests.setup.runs import TINY

PPO = {"algorithm": "ppo", "rollouts": {"group_size": 1, "prompts_per_step": 8}}


@pytest.mark.parametrize(
    "recipe", [TINY, ROLLOUTS, merge_configs(ROLLOUTS, PPO)], ids=["sft", "grpo", "ppo"]
)
def test_phases_checkpoints_and_disk_are_those_of_the_run(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    recipe = merge_configs(recipe, {"run": {"steps": 5, "save_every": 2, "keep": 2}})
    found = ascent.forecast(recipe, say=lambda line: None)
    ascent.train(recipe, run=tmp_path / "run", progress=False, say=lambda line: None)
    run = read_run(tmp_path / "run")
    assert set(found.phases) == {name for name in run.metrics[-1] if name in found.phases}
    assert sum(found.phases.values()) == pytest.approx(
        found.step_seconds, rel=0.5
    )  # middles of noisy times
    folders = [each for each in (tmp_path / "run/checkpoints").iterdir() if each.is_dir()]
    size = sum(each.stat().st_size for each in folders[0].rglob("*") if each.is_file())
    assert found.checkpoint_bytes == pytest.approx(size, rel=0.05)
    whole = sum(each.stat().st_size for each in (tmp_path / "run").rglob("*") if each.is_file())
    assert len(folders) * size <= found.disk and found.disk == pytest.approx(whole, rel=0.5)
    tokens = sum(each.get("tokens/run", 0) for each in run.metrics)
    assert found.tokens == pytest.approx(tokens, rel=0.3)
    assert found.steps == 5 and found.total_seconds >= 5 * found.step_seconds
    assert 100 * 2**20 < found.memory < found.available
    assert "% of a step" in found.limit


def test_the_centering_of_a_reward_model_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once at the end, and where the best checkpoints are kept with each of them."""
    measured: list[float] = []
    scored: list[int] = []
    measure, stock = forecasts._measure_centering, evaluation.normalization

    def normalization(learner: Any, batches: Any) -> Any:
        scored.append(sum(batch["segments"].count for batch in batches))
        return stock(learner, batches)

    def centering(training: Any) -> float:
        measured.append(100 + measure(training))  # more than all other times and their noise
        return measured[-1]

    monkeypatch.setattr(evaluation, "normalization", normalization)
    monkeypatch.setattr(forecasts, "_measure_centering", centering)
    recipe = merge_configs(TINY, {"algorithm": "reward_model", "data": {"train": "arithmetic:16"}})
    recipe = merge_configs(recipe, {"run": {"steps": 5, "save_every": 1, "evaluate_every": 1}})
    for keep_best, times in ((0, 1), (1, 5)):
        found = ascent.forecast(recipe, {"run.keep_best": keep_best}, say=lambda line: None)
        rest = 5 * (found.step_seconds + found.checkpoint_seconds + found.evaluation_seconds)
        assert found.total_seconds - rest == pytest.approx(times * measured[-1])
        assert scored[-1] == 16


def test_a_card_that_is_not_here() -> None:
    found = ascent.forecast(ROLLOUTS, gpu="H100", say=lambda line: None)
    assert found.device == "H100" and found.available == 80e9
    assert set(found.phases) == {"time/sample", "time/update", "time/prepare"}
    slower = ascent.forecast(
        ROLLOUTS, {"rollouts.max_new_tokens": 60}, gpu="H100", say=lambda line: None
    )
    assert slower.phases["time/sample"] > 5 * found.phases["time/sample"]
    free = {**ROLLOUTS, "model": {"policy": "tiny:llama"}}
    by_default, half, single = (
        ascent.forecast(free, more, gpu="H100", say=lambda line: None)
        for more in ({}, {"model.dtype": "bfloat16"}, {"model.dtype": "float32"})
    )
    assert (
        by_default == half and half.memory < single.memory
    )  # not the dtype of the machine that forecasts
    many, few = (
        {"rollouts.group_size": 64, "rollouts.prompts_per_step": count} for count in (32, 8)
    )
    waves = [
        ascent.forecast(ROLLOUTS, each, gpu="H100", say=lambda line: None) for each in (many, few)
    ]
    # 2,048 sequences run 1,024 at a time, as in the engine (`sizing.cuda_max_num_seqs`), 512 at once.
    assert waves[0].phases["time/sample"] == pytest.approx(
        2 * waves[1].phases["time/sample"], rel=0.1
    )
    adapter = ascent.forecast(free, {"model.lora": 4}, gpu="H100", say=lambda line: None)
    assert adapter.checkpoint_bytes < half.checkpoint_bytes / 5 and adapter.memory < half.memory
    with pytest.raises(ValueError, match="has no data sheet"):
        ascent.forecast(ROLLOUTS, gpu="abacus", say=lambda line: None)


def going_on(folder: Path, scores: list[float], steps: int) -> Path:
    """The folder of a run of which only a part is over."""
    ascent.train(ROLLOUTS, run=folder, progress=False, say=lambda line: None)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("steps: 6", f"steps: {steps}"))
    lines = [
        json.dumps({"step": step, "reward/correct": score}) for step, score in enumerate(scores, 1)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_the_score_of_a_run_that_is_going_on(tmp_path: Path) -> None:
    curve = [0.1 + 0.7 / (1 + (20 / step) ** 2) for step in range(1, 41)]
    run = going_on(tmp_path / "run", curve, steps=120)
    found = ascent.forecast_score(run)
    assert (found.metric, found.step, found.steps) == ("reward/correct", 40, 120)
    assert found.forecast.low is not None and found.forecast.high is not None
    assert found.forecast.low < 0.78 < found.forecast.high
    done = CliRunner().invoke(app, ["forecast-score", str(run)], catch_exceptions=False)
    assert done.stdout.startswith("reward/correct at step 120, seen from step 40: 0.")
    with pytest.raises(ValueError, match="reward/men was not logged"):
        ascent.forecast_score(run, metric="reward/men")
    early = going_on(tmp_path / "early", curve[:4], steps=120)
    assert "cannot be known yet: 4 scores" in ascent.forecast_score(early).text()


def test_a_score_beyond_one_is_refused(tmp_path: Path) -> None:
    run = going_on(tmp_path / "run", [1.5] * 10, steps=20)
    with pytest.raises(ValueError, match="scores between 0 and 1 can be forecast"):
        ascent.forecast_score(run)


def test_the_command(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(TINY))
    done = CliRunner().invoke(app, ["forecast", str(recipe), "run.steps=7"], catch_exceptions=False)
    assert done.exit_code == 0 and "7 steps" in done.stdout and "peak memory" in done.stdout
    done = CliRunner().invoke(
        app, ["forecast", str(recipe), "--gpu", "H200", "--json"], catch_exceptions=False
    )
    assert json.loads(done.stdout)["device"] == "H200"
