"""Records of a task by name: `style`, `style@heldout`, `style@heldout:256`, `reasoning:DATASET` (reasoning-gym)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ascent.tasks import TASKS, find_task, suggest_task
from ascent.tasks.reasoning import PREFIX, Reasoning
from ascent.tasks.task import SPLITS, Split, Task

MAX_COUNT_DIGITS = 8  # all records are generated at once
KINDS = ("prompts", "examples", "pairs", "rankings", "unpaired", "steps")
_NAME = re.compile(
    rf"(?P<task>[a-z][a-z0-9_]*|{PREFIX}[a-z0-9_]+)(@(?P<split>[a-z]+))?(:(?P<count>\d+))?"
)


@dataclass(frozen=True)
class TaskName:
    """A parsed name; None where it does not say."""

    task: Task | Reasoning
    split: Split | None
    count: int | None


def is_task(name: str) -> bool:
    """True for the name of a built-in task, with or without split and count."""
    match = _NAME.fullmatch(name)
    return match is not None and (match["task"] in TASKS or match["task"].startswith(PREFIX))


def describe_missing(name: str) -> str:
    """Why a name is no task, and which task may be meant."""
    word = re.split("[@:]", name, maxsplit=1)[0]
    if word in TASKS:
        return (
            f"the task {word} is written {word}, {word}@SPLIT, {word}:COUNT or {word}@SPLIT:COUNT"
        )
    return f"no task named {word!r}; {suggest_task(word)}"


def read_name(name: str) -> TaskName:
    match = _NAME.fullmatch(name)
    if match is None or not is_task(name):
        raise ValueError(f"{name!r} names no built-in task: {describe_missing(name)}")
    split = match["split"]
    if split not in (None, *SPLITS):
        raise ValueError(
            f"{name}: a built-in task has the splits {' and '.join(SPLITS)}, not {split!r}"
        )
    if len(match["count"] or "") > MAX_COUNT_DIGITS:
        raise ValueError(
            f"{name[:80]}: a count must be less than {10**MAX_COUNT_DIGITS}; give a smaller one"
        )
    return TaskName(
        find_task(match["task"]),
        cast("Split | None", split),
        int(match["count"]) if match["count"] else None,
    )


def from_name(
    name: str, kind: str, *, seed: int = 0, count: int = 2048, split: Split = "train"
) -> Sequence[Any]:
    """Records of that kind; `count` and `split` are defaults for what the name omits."""
    named = read_name(name)
    if kind not in KINDS:
        raise ValueError(f"{name} as {kind!r}, but it must be one of {', '.join(KINDS)}")
    task = named.task
    generators: dict[str, Callable[[Split, int, int], Sequence[Any]]]
    generators = {"prompts": task.prompts, "examples": task.demonstrations}
    if isinstance(task, Task):
        generators |= {"pairs": task.pairs, "rankings": task.rankings, "unpaired": task.unpaired}
        generators |= {} if task.steps is None else {"steps": task.stepwise}
    if kind not in generators:
        why = (
            "its verifier scores no steps"
            if kind == "steps"
            else "reasoning-gym knows no preferences"
        )
        raise ValueError(f"{name} has no {kind}: {why}; it has {', '.join(generators)}")
    return generators[kind](
        named.split or split, count if named.count is None else named.count, seed
    )
