"""Tagged: "4 + 7 + 9 = in []" is answered by "[20]". Format, correctness and brevity are three separate rewards.

They are independent, so they can be weighted, gated or normalized separately. Demonstrations are always right, half of
them in brackets and half of them wordy, so an SFT policy can still improve in two ways.
"""

from __future__ import annotations

import re

from ascent.tasks.keyed_random import KeyedRandom
from ascent.tasks.task import Problem, Task, word_count

MOST = 20
IN_BRACKETS = re.compile(r"[^\[\]]*\[\s*(0|-?[1-9][0-9]*)\s*\]")
NUMBER = re.compile(r"-?[0-9]+")
FILLER = ("so", "well", "then", "it", "must", "be", "now")
FREE, TOO_MANY = 2, 8  # words up to which `brief` is 1, and from which it is 0


def draw(rng: KeyedRandom) -> Problem:
    numbers = sorted(rng.integer(1, MOST) for _ in range(3))
    asked = list(numbers)
    first = asked.pop(rng.integer(0, 2))
    shown = [first, *(asked if rng.uniform() < 0.5 else asked[::-1])]
    return Problem(
        f"{' + '.join(map(str, shown))} = in []", f"[{sum(numbers)}]", " ".join(map(str, numbers))
    )


def parts(answer: str, text: str) -> dict[str, float]:
    """correct: the last number; format: words, then one number in brackets; brief: 1 up to two words, 0 from eight."""
    text = text.strip()
    numbers = NUMBER.findall(text)
    brief = min(1.0, max(0.0, (TOO_MANY - word_count(text)) / (TOO_MANY - FREE)))
    return {
        "correct": float(bool(numbers) and numbers[-1] == answer.strip("[]")),
        "format": float(IN_BRACKETS.fullmatch(text) is not None),
        "brief": brief if numbers else 0.0,
    }


def _write(value: str, rng: KeyedRandom) -> str:
    words = [rng.choice(FILLER) for _ in range(rng.integer(4, 8))] if rng.uniform() < 0.5 else []
    return " ".join([*words, f"[{value}]" if rng.uniform() < 0.5 else value])


def attempt(problem: Problem, rng: KeyedRandom) -> str:
    value = int(problem.answer.strip("[]")) + (
        rng.choice((-10, -1, 1, 10)) if rng.uniform() < 0.5 else 0
    )
    return _write(str(value), rng)


def demonstrate(problem: Problem, rng: KeyedRandom) -> str:
    return _write(problem.answer.strip("[]"), rng)


TAGGED = Task(
    name="tagged",
    summary="a sum of three numbers; right, in brackets and brief are separate rewards",
    draw=draw,
    parts=parts,
    attempt=attempt,
    demonstrate=demonstrate,
    utility={"correct": 1.0, "format": 0.5, "brief": 0.5},
)
