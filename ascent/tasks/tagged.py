"""Tagged: "4 + 7 + 9 = in []" is answered by "[20]". Format, correctness and brevity are three rewards on their own.

A text may be right and untagged, tagged and wrong, both and long-winded, so the parts can be weighted, gated or
normalized apart. Demonstrations are always right, tagged half of the time and wordy half of the time: a policy that
imitates them has two things left to learn.
"""

from __future__ import annotations

import re

from ascent.tasks.noise import Noise
from ascent.tasks.task import Problem, Task, word_count

MOST = 20
IN_BRACKETS = re.compile(r"[^\[\]]*\[\s*(0|-?[1-9][0-9]*)\s*\]")
NUMBER = re.compile(r"-?[0-9]+")
FILLER = ("so", "well", "then", "it", "must", "be", "now")
# Words that an answer may have before brevity falls, and those at which it is gone.
FREE, TOO_MANY = 2, 8


def draw(noise: Noise) -> Problem:
    numbers = sorted(noise.whole(1, MOST) for _ in range(3))
    asked = list(numbers)
    first = asked.pop(noise.whole(0, 2))
    shown = [first, *(asked if noise.unit() < 0.5 else asked[::-1])]
    return Problem(f"{' + '.join(map(str, shown))} = in []", f"[{sum(numbers)}]", " ".join(map(str, numbers)))


def parts(answer: str, text: str) -> dict[str, float]:
    """correct: the last number; format: words, then one number in brackets; brief: 1 up to two words, 0 from eight."""
    text = text.strip()
    numbers = NUMBER.findall(text)
    brief = min(1.0, max(0.0, (TOO_MANY - word_count(text)) / (TOO_MANY - FREE)))
    return {
        "correct": float(bool(numbers) and numbers[-1] == answer.strip("[]")),
        "format": float(IN_BRACKETS.fullmatch(text) is not None),
        "brief": brief if numbers else 0.0,  # saying nothing at all is no virtue
    }


def _said(value: str, noise: Noise) -> str:
    words = [noise.choice(FILLER) for _ in range(noise.whole(4, 8))] if noise.unit() < 0.5 else []
    return " ".join([*words, f"[{value}]" if noise.unit() < 0.5 else value])


def attempt(problem: Problem, noise: Noise) -> str:
    value = int(problem.answer.strip("[]")) + (noise.choice((-10, -1, 1, 10)) if noise.unit() < 0.5 else 0)
    return _said(str(value), noise)


def demonstrate(problem: Problem, noise: Noise) -> str:
    return _said(problem.answer.strip("[]"), noise)


TAGGED = Task(
    name="tagged",
    summary="a sum of three numbers; right, in brackets and brief are rewarded apart",
    draw=draw,
    parts=parts,
    attempt=attempt,
    demonstrate=demonstrate,
    utility={"correct": 1.0, "format": 0.5, "brief": 0.5},
)
