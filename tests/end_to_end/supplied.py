"""Small studies of what learns from a teacher's distribution or from judged steps, on the models of `studies`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ascent.algorithms import TABLE
from ascent.runs.folder import read_run
from ascent.tasks.keyed_random import KeyedRandom
from ascent.tasks.sort_digits import SORT_DIGITS
from tests.end_to_end.studies import ANSWER_TOKENS, Recipe, evaluated, start, trained, write

DISTILLED = Recipe(steps=100, learning_rate=3e-3, records=6400)
OWN_ANSWERS = Recipe(steps=40, learning_rate=1e-3, records=1280, batch_size=32)
JUDGED = Recipe(steps=120, learning_rate=3e-3, records=7680)


def distilled(algorithm: str, teacher: Path, student: Path, folder: Path, seed: int) -> list[float]:
    """The held-out loss half way and at the end, of a student that starts elsewhere and reads the records' answers."""
    more: dict[str, Any] = {
        "model": {"teacher": str(teacher)},
        "data": {"evaluate": "sort_digits@heldout:128"},
        "run": {"evaluate_every": DISTILLED.steps // 2},
    }
    if "data.on_policy_fraction" in TABLE[algorithm].defaults:
        more["data"]["on_policy_fraction"] = 0.0
    trained(
        algorithm, DISTILLED, f"sort_digits:{DISTILLED.records}", student, folder, seed, more=more
    )
    return evaluated(folder, "loss")


def answered_anew(teacher: Path, student: Path, folder: Path, seed: int) -> tuple[float, float]:
    """How far a student is from its teacher in the answers it gives itself, in the first ten steps and the last ten."""
    more = {
        "model": {"teacher": str(teacher)},
        "data": {"on_policy_fraction": 1.0},
        "rollouts": {"max_new_tokens": ANSWER_TOKENS},
    }
    trained(
        "gkd", OWN_ANSWERS, f"sort_digits:{OWN_ANSWERS.records}", student, folder, seed, more=more
    )
    losses = [line["loss/total"] for line in read_run(folder).metrics]
    return sum(losses[:10]) / 10, sum(losses[-10:]) / 10


def rising(count: int, seed: int, *, sure: float = 1.0) -> Iterable[dict[str, Any]]:
    """Digits line by line: a step is right where its digit is not below the one before, as far as one can be sure."""
    noise = KeyedRandom("rising", seed)
    for _ in range(count):
        digits = [noise.integer(0, 9) for _ in range(6)]
        right = [later >= earlier for earlier, later in zip([0, *digits], digits, strict=False)]
        labels = [each if sure == 1 else sure if each else 1 - sure for each in right]
        yield {
            "prompt": "count up:",
            "completions": [str(digit) for digit in digits],
            "labels": labels,
        }


def judged_steps(algorithm: str, folder: Path, seed: int, *, sure: float = 1.0) -> dict[str, float]:
    """Held-out accuracy and loss of a process reward model, from random weights."""
    files = [
        write(folder / f"{name}.jsonl", rising(count, number, sure=sure))
        for name, count, number in (("train", JUDGED.records, seed), ("heldout", 128, seed + 1000))
    ]
    begin = start(SORT_DIGITS, folder / "start", seed)
    more = {"data": {"evaluate": str(files[1])}, "run": {"evaluate_every": JUDGED.steps}}
    trained(algorithm, JUDGED, str(files[0]), begin, folder / algorithm, seed, more=more)
    return {name: evaluated(folder / algorithm, name)[-1] for name in ("accuracy", "loss")}
