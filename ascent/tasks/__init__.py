"""Built-in task families, by name: seeded problems, verifiers, preferences of known strength. No torch."""

from __future__ import annotations

import difflib

from ascent.tasks.arithmetic import ARITHMETIC
from ascent.tasks.sort_digits import SORT_DIGITS
from ascent.tasks.style import STYLE
from ascent.tasks.task import Task

TASKS: dict[str, Task] = {task.name: task for task in (SORT_DIGITS, ARITHMETIC, STYLE)}


def find_task(name: str) -> Task:
    """The task of that name, or an error that names the nearest."""
    if name in TASKS:
        return TASKS[name]
    near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(TASKS)}"
    raise ValueError(f"no task named {name!r}; {hint}")
