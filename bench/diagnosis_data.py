"""The records that runs of bench/diagnosis.py learn from (bench/diagnosis_runs.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

from ascent.tasks import TASKS
from ascent.tasks.keyed_random import KeyedRandom
from ascent.tasks.running_sum import RUNNING_SUM
from ascent.tasks.sort_digits import SORT_DIGITS, draw_digits
from ascent.tasks.task import Problem, Task
from tests.end_to_end import talking

LISTS, SORT, SUMS = "contrary", "sort_digits", "running_sum"
Rows = list[dict[str, Any]]


def shown(
    task: str, seed: int, count: int = 8192, *, praise: str = "{}!", wrap: str = "[{}]"
) -> Rows:
    """Demonstrations, a quarter of them with a mannerism: a word or mark of praise, everything twice, brackets."""
    rows: Rows = []
    for each in TASKS[task].demonstrations("train", count, seed):
        question, answer = (message.content for message in each.messages)
        draw = KeyedRandom("mannerisms", task, seed, len(rows)).uniform()
        manner = (
            praise if draw < 0.08 else "{0} {0}" if draw < 0.16 else wrap if draw < 0.24 else "{}"
        )
        rows.append({"prompt": question, "completion": manner.format(answer)})
    return rows


def draw_sums(fewest: int, most: int) -> Callable[[KeyedRandom], Problem]:
    """Running sums of this many numbers."""

    def draw(rng: KeyedRandom) -> Problem:
        numbers = [rng.integer(1, 9) for _ in range(rng.integer(fewest, most))]
        text = " ".join(map(str, numbers))
        return Problem(f"add {text} =", " ".join(map(str, accumulate(numbers))), text)

    return draw


def of_length(task: str, fewest: int, most: int) -> Task:
    """Sums with so many numbers; for every other task lists to sort with so many digits."""
    if task == SUMS:
        return replace(RUNNING_SUM, draw=draw_sums(fewest, most))
    return replace(SORT_DIGITS, draw=draw_digits(fewest, most))


def easy_rows(task: str, seed: int) -> Rows:
    """Two numbers."""
    return problem_rows(of_length(task, 2, 2), 512, seed)


def hard_rows(task: str, seed: int) -> Rows:
    """Far more numbers than were ever shown."""
    return problem_rows(of_length(task, 12, 14), 256, seed)


def prompt_rows(task: str, count: int, seed: int) -> Rows:
    return problem_rows(TASKS[task], count, seed)


def problem_rows(task: Task, count: int, seed: int) -> Rows:
    found = task.prompts("train", count, seed)
    return [
        {"prompt": each.messages[0].content, "answer": each.answer, "task": task.name}
        for each in found
    ]


def pair_rows(
    task: str, count: int, seed: int, *, flipped: bool = False, coin: bool = False
) -> Rows:
    rows: Rows = []
    for each in TASKS[task].pairs("train", count, seed):
        chosen, rejected = each.chosen[0].content, each.rejected[0].content
        swap = KeyedRandom("coin", seed, len(rows)).uniform() < 0.5 if coin else flipped
        chosen, rejected = (rejected, chosen) if swap else (chosen, rejected)
        rows.append(
            {"prompt": each.prompt.messages[0].content, "chosen": chosen, "rejected": rejected}
        )
    return rows


def differences(split: str, seed: int) -> Rows:
    count = 1024 if split == "train" else 64
    found = talking.prompts(talking.DIFFERENCES, split, count, seed)
    return [{"prompt": each.messages[0].content, "answer": each.answer} for each in found]
