"""Small studies of rows that learn from rollouts, judged by the task's own verifier on held-out prompts.

`practise`: every row on a task of seconds, all from the same few steps of imitation. `sort`: the whole sorting task of
the quick start, with controls. Rows are trained as the table has them; only what `Practice` names is set. A study is a
pure function of its seed.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ascent.algorithms import TABLE
from ascent.build import resolve
from ascent.build.conflicts import UNSUPPLIED
from ascent.build.evaluating import evaluate
from ascent.build.stages import stage
from ascent.config.load import merged, nested, read_recipe
from ascent.config.validate import validate

SEEDS = range(1, 6)  # settings were chosen on seed 0
PROMPTS, SAMPLES = 128, 4


@dataclass(frozen=True)
class Practice:
    """What a row's study may set: learning rate, group size, lengths and batch."""

    learning_rate: float = 3e-4
    steps: int = 15
    sequences: int = 128  # of one step
    group_size: int = 8
    task: str = "contrary"
    max_new_tokens: int = 8
    minibatches: int | None = None  # as the row has it


ALONE = Practice(group_size=1)  # rows that compare no answers of one prompt
OFTEN = Practice(learning_rate=1e-4)  # rows with many optimizer steps a rollout step
ROWS: dict[str, Practice] = {
    name: Practice() for name, row in TABLE.items() if row.source == "rollouts" and not row.needs & set(UNSUPPLIED)
}
ROWS |= {name: ALONE for name in ROWS if TABLE[name].defaults.get("rollouts.group_size") == 1}
ROWS |= {name: OFTEN for name in ROWS if TABLE[name].defaults.get("update.minibatches", 1) > 4}
ROWS["grpo_process"] = Practice(task="running_sum", max_new_tokens=16)
REWARDED = Path(__file__).with_name("rewarded.py")
# What a row cannot do without, beyond a verifier.
EXTRA: dict[str, dict[str, Any]] = {
    "instructgpt": {"data": {"pretraining": "contrary:1024"}},
    "gdpo": {"rewards": [{"use": "verifier"}, {"use": f"{REWARDED}:ended", "weight": 0.1}]},
}


def imitate(root: Path, task: str, *, seed: int = 0, steps: int = 300) -> Path:
    """The start of every row: a few steps of imitation, the same for all rows and seeds of a study."""
    folder = root / f"imitate-{task}-{steps}-{seed}"
    recipe = merged(
        read_recipe("quickstart_sft"),
        nested({"seed": seed, "data.train": f"{task}:16384", "run.steps": steps, "run.save_every": steps}),
    )
    quietly(recipe, folder)
    return folder


def practise(root: Path, row: str, seed: int, practice: Practice | None = None) -> dict[str, float]:
    """Held-out accuracy of drawn answers, before and after."""
    practice = practice or ROWS[row]
    start = imitate(root, practice.task)
    folder = root / f"{row}-{seed}"
    quietly(recipe_of(row, practice, start, seed), folder)
    return {"before": accuracy(start, practice), "after": accuracy(folder, practice)}


def recipe_of(row: str, practice: Practice, start: Path, seed: int) -> dict[str, Any]:
    recipe = {
        "algorithm": row,
        "seed": seed,
        "model": {"policy": str(start)},
        "data": {"train": f"{practice.task}:2048"},
        "rewards": [{"use": "verifier"}],
        "rollouts": {
            "prompts_per_step": practice.sequences // practice.group_size,
            "group_size": practice.group_size,
            "max_new_tokens": practice.max_new_tokens,
        },
        "update": {"learning_rate": practice.learning_rate},
        "run": {"steps": practice.steps, "save_every": practice.steps},
    }
    more: dict[str, Any] = EXTRA.get(row, {})
    if practice.minibatches is not None:
        more = merged(more, {"update": {"minibatches": practice.minibatches}})
    if "teacher" in TABLE[row].needs:
        more = merged(more, {"model": {"teacher": str(start)}})
    if any(each.name == "soft_overlong" for each in TABLE[row].shape):
        limits = {"max_length": practice.max_new_tokens, "cache": 1}
        more = merged(more, {"cells": {"shape": {"soft_overlong": limits}}})
    return merged(recipe, more)


def accuracy(folder: Path, practice: Practice) -> float:
    found = evaluate(str(folder), practice.task, samples=SAMPLES, limit=PROMPTS, max_new_tokens=practice.max_new_tokens)
    return found.figures[f"mean@{SAMPLES}/correct"].value


# --- the whole sorting task ------------------------------------------------------------------------------------------

LONG = Practice(steps=200, sequences=256, task="sort_long", max_new_tokens=14, minibatches=2)
SORT: dict[str, Practice] = {
    "rlvr": LONG,
    "grpo": LONG,
    "dapo": replace(LONG, learning_rate=1e-4, minibatches=None),
    "ppo": replace(LONG, group_size=1, minibatches=None),
    "rloo": LONG,
}


def sort(root: Path, row: str, seed: int, *, shuffled: bool = False) -> dict[str, float]:
    """The quick start's second stage with another row; with `shuffled`, a fair coin is the reward."""
    start = imitate(root, "sort_short", seed=seed, steps=200)
    practice = SORT[row]
    folder = root / f"sort-{row}-{seed}{'-shuffled' if shuffled else ''}"
    recipe = recipe_of(row, practice, start, seed)
    recipe = merged(recipe, {"update": {"schedule": "linear", "warmup_steps": 20}})
    recipe = merged(recipe, {"data": {"train": f"{practice.task}:4096"}})
    if shuffled:
        recipe["rewards"] = [{"use": f"{REWARDED}:shuffled"}]
    quietly(recipe, folder)
    before, after = (greedy(each, practice) for each in (start, folder))
    return {"before": before, "after": after}


def greedy(folder: Path, practice: Practice) -> float:
    found = evaluate(str(folder), practice.task, samples=0, limit=256, max_new_tokens=practice.max_new_tokens)
    return found.figures["greedy/correct"].value


def quietly(recipe: Mapping[str, Any], folder: Path) -> None:
    """One run, or the rest of it, or nothing where it is finished."""
    with contextlib.redirect_stderr(io.StringIO()):
        stage(resolve(validate(dict(recipe))), folder, lambda line: None)
