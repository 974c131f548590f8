"""Callbacks see every step, evaluation and end, and may stop a run without losing the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ascent
from ascent.api.callbacks import Callbacks
from ascent.runs.folder import read_run

SFT = {
    "algorithm": "sft",
    "model.policy": "tiny:llama",
    "data.train": "arithmetic:16",
    "data.batch_size": 4,
    "data.evaluate": "arithmetic@heldout:4",
    "data.max_tokens": 64,
    "run.steps": 4,
    "run.evaluate_every": 2,
}


class Recorder:
    def __init__(self, stop_at: int = 0) -> None:
        self.calls: list[tuple[str, int]] = []
        self.stop_at, self.reason = stop_at, ""

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        assert metrics["loss/total"] > 0
        self.calls.append(("step", step))

    def on_evaluate(self, step: int, metrics: dict[str, float]) -> str | None:
        assert metrics["eval/loss/total"] > 0
        self.calls.append(("evaluate", step))
        return "good enough" if step == self.stop_at else None

    def on_end(self, step: int, reason: str) -> None:
        self.calls.append(("end", step))
        self.reason = reason


def run(folder: Path, callbacks: Any, **more: Any) -> Any:
    return ascent.train(
        {**SFT, **more}, run=folder, callbacks=callbacks, progress=False, say=lambda line: None
    )


def test_the_order_of_calls(tmp_path: Path) -> None:
    recorder = Recorder()
    assert run(tmp_path / "r", [recorder]).state == "finished"
    steps = [
        ("step", 1),
        ("step", 2),
        ("evaluate", 2),
        ("step", 3),
        ("step", 4),
        ("evaluate", 4),
        ("end", 4),
    ]
    assert recorder.calls == steps and recorder.reason == ""


def test_an_evaluation_stops_a_run_which_is_saved_and_can_be_resumed(tmp_path: Path) -> None:
    recorder = Recorder(stop_at=2)
    stopped = run(tmp_path / "r", recorder)
    assert (
        stopped.state == "stopped"
        and recorder.calls[-1] == ("end", 2)
        and recorder.reason == "good enough"
    )
    assert (tmp_path / "r/checkpoints/2").is_dir()
    assert (
        run(tmp_path / "full", ()).metrics[-1]["loss/total"]
        == resumed(tmp_path / "r").metrics[-1]["loss/total"]
    )


def resumed(folder: Path) -> Any:
    recorder = Recorder()
    found = ascent.resume(folder, callbacks=recorder, progress=False, say=lambda line: None)
    assert recorder.calls[0] == ("step", 3)
    return found


def test_a_callback_that_raises_fails_the_run_after_the_step_is_saved(tmp_path: Path) -> None:
    def breaks(step: int, metrics: dict[str, float]) -> None:
        if step == 3:
            raise KeyError("gone")

    with pytest.raises(
        RuntimeError,
        match=r"breaks raised KeyError: 'gone' at .*test_callbacks\.py:\d+.* \(step 3\)",
    ):
        run(tmp_path / "r", breaks)
    assert read_run(tmp_path / "r").state == "failed" and (tmp_path / "r/checkpoints/3").is_dir()


def test_the_first_reason_counts() -> None:
    found = Callbacks([lambda step, metrics: "first", lambda step, metrics: "second"])
    found.on_step(1, {})
    assert found.reason == "first"
    metrics = {"loss/total": 1.0}
    Callbacks(lambda step, seen: seen.clear()).on_step(1, metrics)
    assert metrics  # a callback gets a copy


def test_a_truth_of_numpy_stops() -> None:
    found = Callbacks(lambda step, metrics: np.mean([1.0, 3.0]) > step)
    found.on_step(2, {})
    assert found.reason == ""
    found.on_step(1, {})
    assert found.reason.startswith("stopped by")
