"""Rounds: killed anywhere they end in the same weights, and what is truly liked rises from round to round."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ascent.runs.folder
from ascent.api import iterate as building
from ascent.checkpoints import disk
from ascent.config.iterate import iterate_config
from ascent.feedback.preference_log import PreferenceLog
from ascent.feedback.samples import Samples
from tests.end_to_end import crashing

LIKED = f"{Path(__file__).with_name('liked.py')}:high"
_server = multiprocessing.get_context("forkserver")


def recipe(**changes: Any) -> dict[str, Any]:
    """Small enough to be killed often."""
    return {
        "rounds": 2,
        "sft": {
            "algorithm": "sft",
            "model": {"policy": "tiny:llama"},
            "data": {"train": "style:64", "batch_size": 8, "max_tokens": 64},
            "update": {"learning_rate": 3e-3},
            "run": {"steps": 4, "save_every": 2},
        },
        "collect": {
            "prompts": "style:8",
            "annotator": f"{LIKED}?noise=0.2",
            "samples": 3,
            "per_prompt": 2,
            "repeat": 0.3,
            "max_new_tokens": 6,
        },
        "reward_model": {
            "algorithm": "reward_model",
            "data": {"batch_size": 4, "max_tokens": 64},
            "update": {"learning_rate": 1e-3},
            "run": {"steps": 4, "save_every": 2},
        },
        "policy": {
            "algorithm": "rlhf",
            "model": {"critic": "head"},
            "data": {"train": "style:16"},
            "rollouts": {"prompts_per_step": 4, "max_new_tokens": 6},
            "update": {"learning_rate": 1e-3, "epochs": 2},
            "run": {"steps": 4, "save_every": 2},
        },
        "measure": {"prompts": "style@heldout:4", "judge": LIKED, "max_new_tokens": 6},
        **changes,
    }


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(
    owner: Any, name: str, number: int, matching: Callable[..., bool] = lambda *_: True
) -> None:
    """Kill this process instead of the n-th call that matches."""
    whole, calls = getattr(owner, name), [0]

    def counting(*given: Any) -> Any:
        calls[0] += matching(*given)
        if calls[0] == number:
            killed()
        return whole(*given)

    setattr(owner, name, counting)


def saving(stage: str, step: int) -> None:
    """Kill this process before a checkpoint of that stage gets its name."""

    def watch(kind: str, path: Path) -> None:
        if (kind, path.name) == ("rename", str(step)) and str(path.parent.parent).endswith(stage):
            killed()

    disk.watcher = watch


def writing(name: str) -> None:
    at_call(building, "replace_file", 1, lambda path, text: str(path).endswith(name))


# In this order each is reached by a run that was killed at the one before.
FAULTS: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
    "the first policy's second checkpoint": (saving, ("sft", 4)),
    "sampling": (at_call, (Samples, "put", 4)),
    "a verdict": (at_call, (PreferenceLog, "append", 6)),
    "the comparisons": (writing, ("round-1/comparisons.jsonl",)),
    "the reward model's first checkpoint": (saving, ("round-1/reward_model", 2)),
    "the reward model's last checkpoint": (saving, ("round-1/reward_model", 4)),
    "the policy's second checkpoint": (saving, ("round-1/policy", 4)),
    "what was measured": (writing, ("round-1/measured.json",)),
    "a verdict of the second round": (at_call, (PreferenceLog, "append", 3)),
    "the second policy's first checkpoint": (saving, ("round-2/policy", 2)),
}


def _work(folder: Path, fault: tuple[Callable[..., None], tuple[Any, ...]] | None) -> None:
    crashing.log_to(folder.with_name(f"{folder.name}.log"))
    ascent.runs.folder.draw = lambda *_, **__: None  # the pictures take longer than the training
    if fault is not None:
        fault[0](*fault[1])
    building.iterate(iterate_config(recipe(), "test"), run=folder)


def finish(folder: Path, fault: tuple[Callable[..., None], tuple[Any, ...]] | None = None) -> int:
    child = _server.Process(target=_work, args=(folder, fault))
    child.start()
    return crashing.ended(child)


def outcome(folder: Path) -> dict[str, str]:
    """Every last weight, every verdict but when it was given, every measurement."""
    found = {}
    for path in sorted(folder.rglob("model.safetensors")):
        if "4" in path.parts:
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(folder.rglob("*.jsonl")):
        if path.name in ("feedback.jsonl", "feedback.samples.jsonl", "comparisons.jsonl"):
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            shown = [
                {k: v for k, v in row.items() if k not in ("time", "timestamp", "models", "model")}
                for row in rows[1:]
            ]
            found[str(path.relative_to(folder))] = json.dumps(
                [
                    [
                        {k: v for k, v in a.items() if k != "model"}
                        for a in row.get("answers", [])
                        if isinstance(a, dict)
                    ]
                    or row
                    for row in shown
                ]
            )
    for path in sorted(folder.rglob("measured.json")):
        found[str(path.relative_to(folder))] = json.dumps(json.loads(path.read_text())["scores"])
    return found


def test_killed_at_every_stage_they_end_in_the_same_weights(tmp_path: Path) -> None:
    calm, wild = tmp_path / "calm", tmp_path / "wild"
    assert finish(calm) == 0, calm.with_name("calm.log").read_text()
    for where, fault in FAULTS.items():
        assert finish(wild, fault) == -signal.SIGKILL, where
    assert finish(wild) == 0, wild.with_name("wild.log").read_text()
    expected, found = outcome(calm), outcome(wild)
    assert "round-2/policy/checkpoints/4/model/model.safetensors" in expected
    assert len(expected) == 5 + 6 + 2
    assert [name for name in expected if expected[name] != found.get(name)] == []
    assert found == expected
    log = wild.with_name("wild.log").read_text()
    assert "round-1/reward_model is finished" in log and "has answered" in log
    before = (wild / "round-2/policy/outcome.json").stat().st_mtime_ns
    assert finish(wild) == 0  # and once more: nothing is left to do
    assert (wild / "round-2/policy/outcome.json").stat().st_mtime_ns == before


def test_what_is_truly_liked_rises_over_two_rounds(tmp_path: Path) -> None:
    """Mean true score of the first policy, after one round, after two, measured on seeds 0, 1, 2: .485, .756, .882;
    .484, .729, .916; .464, .707, .824. Win rates over the first policy: .797, .906; .742, .914; .758, .836.
    """
    changes: dict[str, Any] = {
        "sft": recipe()["sft"]
        | {
            "data": {"train": "style:2048", "batch_size": 64, "max_tokens": 64},
            "run": {"steps": 30, "save_every": 30},
        },
        "collect": {
            "prompts": "style:128",
            "annotator": f"{LIKED}?noise=0.1",
            "samples": 4,
            "per_prompt": 3,
            "max_new_tokens": 12,
        },
        "reward_model": recipe()["reward_model"]
        | {
            "data": {"batch_size": 32, "max_tokens": 64},
            "run": {"steps": 30, "save_every": 30},
        },
        "policy": recipe()["policy"]
        | {
            "data": {"train": "style:256"},
            "rollouts": {"prompts_per_step": 32, "max_new_tokens": 12},
            "update": {"learning_rate": 6e-4},
            "run": {"steps": 8, "save_every": 8},
        },
        "measure": {"prompts": "style@heldout:64", "judge": LIKED, "max_new_tokens": 12},
    }
    found = building.iterate(
        iterate_config(recipe(**changes), "test"), run=tmp_path / "rounds", say=lambda line: None
    )
    (one, two) = (each.comparison for each in found)
    assert one is not None and two is not None
    start, first, second = one["scores"][1], one["scores"][0], two["scores"][0]
    assert start + 0.1 < first < second, (start, first, second)
    assert one["winner"] == two["winner"] == "a"
    assert two["win_rate"]["value"] > one["win_rate"]["value"] > 0.6
