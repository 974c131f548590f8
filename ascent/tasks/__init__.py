"""Built-in tasks: seeded problems, verifiers, and preferences of known strength."""

from __future__ import annotations

import difflib

from ascent.tasks.arithmetic import ARITHMETIC
from ascent.tasks.countdown import COUNTDOWN
from ascent.tasks.digest import DIGEST, DIGEST_DRAFTS
from ascent.tasks.emphasis import EMPHASIS
from ascent.tasks.maze import MAZE
from ascent.tasks.reasoning import PREFIX, Reasoning
from ascent.tasks.running_sum import RUNNING_SUM
from ascent.tasks.sort_digits import SORT_DIGITS, SORT_LONG, SORT_SHORT, SORT_UP_TO_FOUR
from ascent.tasks.style import CONTRARY, STYLE
from ascent.tasks.tagged import TAGGED
from ascent.tasks.task import Task

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        *(SORT_DIGITS, SORT_SHORT, SORT_LONG, SORT_UP_TO_FOUR, ARITHMETIC, STYLE, CONTRARY),
        *(COUNTDOWN, MAZE, RUNNING_SUM, TAGGED, EMPHASIS, DIGEST, DIGEST_DRAFTS),
    )
}


def find_task(name: str) -> Task | Reasoning:
    """The task of that name; `reasoning:DATASET` is a dataset of reasoning-gym."""
    if name in TASKS:
        return TASKS[name]
    if name.startswith(PREFIX):
        return Reasoning(name.removeprefix(PREFIX))
    raise ValueError(f"no task named {name!r}; {suggest_task(name)}")


def suggest_task(name: str) -> str:
    """The nearest task in words, or all of them."""
    near = difflib.get_close_matches(name.lower(), TASKS, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(TASKS)}"
