"""Records of a task from one name, as recipes write it: `style`, `style@heldout`, `style@heldout:256`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from ascent.tasks import TASKS
from ascent.tasks.task import SPLITS, Split

KINDS = ("prompts", "examples", "pairs", "rankings", "unpaired")
_NAME = re.compile(r"(?P<task>[a-z_]+)(@(?P<split>[a-z]+))?(:(?P<count>\d+))?")


def is_task(name: str) -> bool:
    """True for what names a built-in task, whatever follows it."""
    match = _NAME.fullmatch(name)
    return match is not None and match["task"] in TASKS


def from_name(name: str, kind: str, *, seed: int = 0, count: int = 2048) -> Sequence[Any]:
    """Records of that kind; `count` counts where the name gives no number."""
    match = _NAME.fullmatch(name)
    if match is None or match["task"] not in TASKS:
        raise ValueError(f"{name!r} names no built-in task; write TASK, TASK@SPLIT or TASK@SPLIT:COUNT")
    split = match["split"] or "train"
    if split not in SPLITS:
        raise ValueError(f"{name}: a built-in task has the splits {' and '.join(SPLITS)}, not {split!r}")
    if kind not in KINDS:
        raise ValueError(f"{name} as {kind!r}, but it must be one of {', '.join(KINDS)}")
    task = TASKS[match["task"]]
    makers: dict[str, Callable[[Split, int, int], Sequence[Any]]] = {
        **{"prompts": task.prompts, "examples": task.demonstrations, "pairs": task.pairs},
        **{"rankings": task.rankings, "unpaired": task.judged},
    }
    return makers[kind](cast(Split, split), int(match["count"] or count), seed)
