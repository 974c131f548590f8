"""Rollouts sampled during the update: the same bits as without overlap, for less time; nothing is lost on resume."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ascent
from ascent.engines.copied import CopiedPolicyEngine
from ascent.models.load import load
from ascent.models.tiny import create
from ascent.records import Rollout
from ascent.rollouts.generate import RolloutStream
from ascent.rollouts.source import RolloutSource
from ascent.setup import rl
from tests.engines.served import KEY, served, tiny_folder
from tests.rollouts.test_source import PLAN, even, make, train
from tests.setup.runs import weights_of
from tests.wall_clock import wall_clock

REWARD = "def digits(rollout):\n    return sum(each.isdigit() for each in rollout.text) / max(len(rollout.text), 1)\n"


def recipe(folder: Path, **more: Any) -> dict[str, Any]:
    (folder / "reward.py").write_text(REWARD)
    return {
        "algorithm": "grpo",
        "model": "tiny:llama",
        "model.dtype": "float32",
        "data": "arithmetic:64",
        "rewards": [{"use": f"{folder}/reward.py:digits"}],
        "rollouts.prompts_per_step": 3,
        "rollouts.group_size": 4,
        "rollouts.max_new_tokens": 8,
        "update.learning_rate": 1e-3,
        "run.steps": 4,
        "run.save_every": 2,
        **more,
    }


def run(folder: Path, name: str, **more: Any) -> tuple[bytes, list[dict[str, float]]]:
    done = ascent.train(
        recipe(folder, **more), run=folder / name, progress=False, say=lambda line: None
    )
    return weights_of(folder / name, 4), [each for each in done.metrics if each.get("step", 0) > 0]


def timeless(metrics: dict[str, float]) -> dict[str, float]:
    return {
        name: each
        for name, each in metrics.items()
        if name != "timestamp" and not name.startswith("time/")
    }


def quiet(line: str) -> None:
    pass


@pytest.mark.parametrize("staleness", [1, 2])
def test_overlap_changes_no_bit_in_process_or_on_servers(
    staleness: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lag = {"rollouts.max_staleness": staleness}
    with monkeypatch.context() as patch:
        patch.setattr(rl, "can_overlap", lambda plan, exact: False)
        expected, plain = run(tmp_path, "plain", **lag)
    found, metrics = run(tmp_path, "overlap", **lag)
    assert found == expected
    assert "time/overlap" not in plain[-1] and metrics[-1]["time/overlap"] > 0
    for one, other in zip(metrics, plain, strict=True):
        assert dict(timeless(one).items() ^ timeless(other).items()) == {}
    assert metrics[-1]["sampler/staleness"] == min(staleness, 3)
    monkeypatch.setenv("ASCENT_SERVER_KEY", KEY)
    with (
        served(tiny_folder(tmp_path / "served", seed=7)) as one,
        served(tmp_path / "served") as two,
    ):
        servers = {"rollouts.engine": "remote", "rollouts.servers": [one.url, two.url]}
        assert run(tmp_path, "servers", **lag, **servers)[0] == expected


def test_a_run_with_overlap_resumes_to_the_same_bits(tmp_path: Path) -> None:
    expected, _ = run(tmp_path, "whole", **{"rollouts.max_staleness": 2})
    done = []

    def stop(step: int, metrics: Any) -> bool:
        done.append(step)
        return step == 2

    more = recipe(tmp_path, **{"rollouts.max_staleness": 2})
    ascent.train(more, run=tmp_path / "cut", callbacks=[stop], progress=False, say=quiet)
    assert done == [1, 2]
    ascent.resume(tmp_path / "cut", progress=False, say=quiet)
    assert weights_of(tmp_path / "cut", 4) == expected


def overlapping(folder: Path, score: Any, staleness: int = 1) -> tuple[RolloutSource, Any]:
    source, learner = make(
        folder, "grpo", replace(PLAN, max_staleness=staleness, overlap=True), score=score
    )
    source.sampler = CopiedPolicyEngine(learner.model, load(folder), {1}, max_model_len=64)
    return source, learner


@wall_clock
def test_a_step_takes_as_long_as_the_longer_of_sampling_and_update(tmp_path: Path) -> None:
    """Both are measured in the steps themselves, so that a busy machine slows them alike; waits are most of each."""
    folder, seconds, steps = create(tmp_path / "tiny", seed=0), 1.0, 3

    def slow(rollouts: RolloutStream) -> Sequence[Rollout]:
        found = list(rollouts)
        time.sleep(seconds)
        return even(found)

    source, learner = overlapping(folder, slow)
    step, updates, ratios = learner.step, [0.0], []

    def slow_step(*arguments: Any) -> Any:
        started = time.perf_counter()
        time.sleep(seconds)
        found = step(*arguments)
        updates.append(time.perf_counter() - started)
        return found

    learner.step = slow_step  # type: ignore[method-assign]
    train(source, learner, range(1, 2))  # the first batch has nothing to run beside
    for number in range(2, 2 + steps):
        started = time.perf_counter()
        train(source, learner, range(number, number + 1))
        taken, sampling = time.perf_counter() - started, source.report()["time/overlap"].value()
        assert min(sampling, updates[-1]) >= seconds
        ratios.append(taken / max(sampling, updates[-1]))
    assert statistics.median(ratios) < 1.1, ratios  # one after the other it is 2


def test_an_error_of_the_producer_ends_the_step(tmp_path: Path) -> None:
    calls = []

    def fails(rollouts: RolloutStream) -> Sequence[Rollout]:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the judge is gone")
        return even(list(rollouts))

    source, learner = overlapping(create(tmp_path / "tiny", seed=0), fails)
    train(source, learner, range(1, 2))
    with pytest.raises(RuntimeError, match="the judge is gone"):
        train(source, learner, range(2, 3))
    source.close()
