"""Run folders that were trained for the tests of the page: supervised, two seeds of RL, an environment."""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ascent
from tests.end_to_end import talking

SFT: dict[str, Any] = {
    "algorithm": "sft",
    "model": {"policy": "tiny:digits", "dtype": "float32"},
    "data": {
        "train": "sort_short:2048",
        "evaluate": "sort_short@heldout:16",
        "batch_size": 64,
        "max_tokens": 64,
    },
    "update": {"learning_rate": 3e-3, "schedule": "cosine", "warmup_steps": 5},
    "run": {"steps": 120, "save_every": 60, "evaluate_every": 20},
}
RL: dict[str, Any] = {
    "algorithm": "rlvr",
    "model": {"dtype": "float32"},
    "data": {"train": "sort_short:2048", "evaluate": "sort_short@heldout:24"},
    "rewards": [{"use": "verifier"}],
    "rollouts": {"prompts_per_step": 6, "group_size": 6, "max_new_tokens": 10},
    "update": {"learning_rate": 5e-4},
    "run": {"steps": 14, "save_every": 7, "evaluate_every": 2},
}


def silent(line: str) -> None:
    pass


def train_all(root: Path) -> None:
    ascent.train(SFT, run=root / "runs/sort/sft", progress=False, say=silent)
    for seed in (1, 2):
        over = {"seed": seed, "model.policy": str(root / "runs/sort/sft")}
        ascent.train(RL, over, run=root / f"runs/sort/rlvr/seed-{seed}", progress=False, say=silent)
    study = replace(talking.DIFFERENCES, sft_steps=150, steps=3, prompts_per_step=4, group_size=4)
    work = root / "work"
    work.mkdir()
    talking.learn(study, talking.begin(study, work, seed=0), work, seed=0)
    shutil.move(work / "rl", root / "runs/tools")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `runs`; trained once, also where several test processes want it. ASCENT_VIEW_RUNS keeps it."""
    root = tmp_path_factory.getbasetemp()
    shared = (root.parent if root.name.startswith("popen-") else root) / "trained"
    shared = Path(os.environ.get("ASCENT_VIEW_RUNS", shared)).resolve()
    shared.mkdir(exist_ok=True, parents=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "complete").exists():
            train_all(shared)
            (shared / "complete").touch()
    return shared / "runs"
