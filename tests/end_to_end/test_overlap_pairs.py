"""Overlapping and partial rollouts together with everything else: the same bits, a clean end, no thread left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import ascent
from ascent.runs.folder import read_run
from ascent.setup import rl
from tests.end_to_end.test_overlap import quiet, recipe, timeless
from tests.setup.runs import weights_of
from tests.wall_clock import wall_clock

LAG = {"rollouts.max_staleness": 2}
PARTIAL = {
    **LAG,
    "rollouts.partial_rollouts": True,
    "rollouts.max_new_tokens": 120,
    "update.tokens_per_microbatch": 512,
}
AGAIN = f"{Path(__file__).with_name('rewarded.py')}:again"
OVERLONG = {"max_length": 8, "cache": 2}
PAIRS: dict[str, dict[str, Any]] = {
    "critic": {
        "algorithm": "ppo",
        "model.critic": "separate",
        "rollouts.group_size": 1,
        "update.minibatches": 2,
    },
    "value head": {
        "algorithm": "ppo",
        "model.critic": "head",
        "rollouts.group_size": 1,
        "update.minibatches": 2,
    },
    "refills": {
        "algorithm": "dapo",
        "rollouts.dynamic_sampling_tries": 2,
        "update.minibatches": 2,
        "cells.reward_shaping.soft_overlong": OVERLONG,
    },
    "lora": {"model.lora": 4},
    "evaluation": {"data.evaluate": "arithmetic@heldout:4", "run.evaluate_every": 1},
    "correction": {"cells.rollout_correction.use": "token_mask"},
    "environment": {
        "env": {"use": AGAIN, "max_turns": 2, "max_tokens": 100},
        "update.tokens_per_microbatch": 512,
    },
}


def producers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "producer"]


def run(
    folder: Path, name: str, *, stop_at: int | None = None, **more: Any
) -> list[dict[str, float]]:
    """Metrics of four steps; with `stop_at`, of a run that was stopped there and resumed."""
    ascent.train(
        recipe(folder, **more),
        run=folder / name,
        progress=False,
        say=quiet,
        callbacks=[lambda step, metrics: step == stop_at],
    )
    if stop_at is not None:
        assert read_run(folder / name).state == "stopped"
        ascent.resume(folder / name, progress=False, say=quiet)
    assert producers() == []
    return [timeless(each) for each in read_run(folder / name).metrics]


@pytest.mark.parametrize("pair", PAIRS)
def test_overlap_changes_nothing(
    pair: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(rl, "can_overlap", lambda plan, exact: False)
        plain = run(tmp_path, "plain", **LAG, **PAIRS[pair])
    assert run(tmp_path, "overlap", stop_at=2, **LAG, **PAIRS[pair]) == plain
    assert weights_of(tmp_path / "overlap", 4) == weights_of(tmp_path / "plain", 4)


@pytest.mark.parametrize("pair", ["critic", "refills", "lora", "evaluation", "correction"])
def test_partial_rollouts_go_on_after_a_stop(pair: str, tmp_path: Path) -> None:
    keys = {**PAIRS[pair], **PARTIAL}
    if pair == "refills":
        keys["cells.reward_shaping.soft_overlong"] = {"max_length": 120, "cache": 20}
    whole = run(tmp_path, "whole", **keys)
    assert run(tmp_path, "cut", stop_at=2, **keys) == whole
    assert weights_of(tmp_path / "cut", 4) == weights_of(tmp_path / "whole", 4)
    assert max(each.get("sampler/staleness_max", 0) for each in whole) == 2


@pytest.mark.parametrize("more", [LAG, PARTIAL], ids=["overlap", "partial"])
def test_a_reward_that_raises_ends_the_run_with_its_error(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    calls: list[int] = []

    def breaks(rollout: Any) -> float:
        calls.append(1)
        if len(calls) > 60:
            raise RuntimeError("the judge is gone")
        return len(calls) % 3 / 2

    with pytest.raises(Exception, match="the judge is gone"):
        ascent.train(
            {**recipe(tmp_path, **more), "rewards": [breaks], "run.steps": 20},
            run=tmp_path / "run",
            progress=False,
            say=quiet,
        )
    assert producers() == []
    assert read_run(tmp_path / "run").state == "failed"


SCRIPT = """
import sys, time
import ascent
def slow(rollout):
    time.sleep(float(sys.argv[3]))
    return len(rollout.text) % 2
ascent.train({"algorithm": "grpo", "model.policy": "tiny:llama", "data.train": "arithmetic:64", "rewards": [slow],
    "rollouts.prompts_per_step": 2, "rollouts.group_size": 2, "rollouts.max_new_tokens": 8, "run.steps": 1000,
    "rollouts.max_staleness": 2, "rollouts.partial_rollouts": sys.argv[2] == "partial"},
    run=sys.argv[1], progress=False)
"""


@wall_clock
@pytest.mark.parametrize(("kind", "presses"), [("overlap", 1), ("partial", 1), ("overlap", 2)])
def test_ctrl_c_ends_the_step_and_a_second_one_the_run(
    tmp_path: Path, kind: str, presses: int
) -> None:
    """The first one saves the step's checkpoint. The second does not wait for what the thread is doing."""
    folder, waits = tmp_path / "run", "0.1" if presses == 1 else "2"
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), kind, waits],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + 120
        while (
            not (folder / "metrics.jsonl").is_file() or not (folder / "metrics.jsonl").read_text()
        ):
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        for _ in range(presses):
            child.send_signal(signal.SIGINT)
            time.sleep(0.3)
        _, said = child.communicate(timeout=60)
    finally:
        child.kill()
    if presses == 1:
        assert child.returncode == 0, said
        assert read_run(folder).state == "stopped" and read_run(folder).checkpoints
    else:
        assert child.returncode == 128 + signal.SIGINT and "exiting now" in said


def test_partial_rollouts_are_refused_where_they_cannot_wait(tmp_path: Path) -> None:
    for more, said in (
        ({"rollouts.max_staleness": 0}, "max_staleness=0"),
        ({"rollouts.engine": "hf"}, "engine hf cannot interrupt"),
        ({"env": {"use": AGAIN}}, "an environment cannot wait"),
        ({"model.dtype": "bfloat16"}, "cells.rollout_correction.use=token_truncate"),
    ):
        with pytest.raises(ValueError, match=said):
            ascent.train(
                recipe(tmp_path, **{**PARTIAL, **more}),
                run=tmp_path / "refused",
                progress=False,
                say=quiet,
            )


def test_stale_rollouts_without_a_correction_are_warned_of(tmp_path: Path) -> None:
    def notes(name: str, **more: Any) -> str:
        lines: list[str] = []
        keys = recipe(tmp_path, **{**more, "run.steps": 1})
        ascent.train(keys, run=tmp_path / name, progress=False, say=lines.append)
        return "\n".join(lines)

    assert "up to 2 versions old are trained without a correction" in notes("stale", **LAG)
    assert "without a correction" not in notes("corrected", **LAG, **PAIRS["correction"])
    assert "without a correction" not in notes("synchronous")
