"""Arithmetic: "12 + 7 =" is answered by "19". Sums and differences of two-digit numbers, products of one-digit ones.

a + b and b + a share a key (so do products): whoever has seen one knows the other.
"""

from __future__ import annotations

import re

from ascent.tasks.noise import Noise
from ascent.tasks.task import Problem, Task, in_place

WHOLE = re.compile(r"0|-?[1-9][0-9]*")


def draw(noise: Noise) -> Problem:
    sign = noise.choice("+-*")
    most = 9 if sign == "*" else 99
    a, b = noise.whole(0, most), noise.whole(0, most)
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    low, high = (a, b) if sign == "-" else (min(a, b), max(a, b))
    return Problem(f"{a} {sign} {b} =", str(value), f"{low} {sign} {high}")


def parts(answer: str, text: str) -> dict[str, float]:
    """correct; format: a whole number without leading zeros; digits: share of right ones, counted from the right."""
    text = text.strip()
    shaped = WHOLE.fullmatch(text) is not None
    return {
        "correct": float(text == answer),
        "format": float(shaped),
        "digits": in_place(answer[::-1], text[::-1]) if shaped else 0.0,
    }


def attempt(problem: Problem, noise: Noise) -> str:
    """The right value, or one that is off by a little, by ten, or in its sign."""
    value = int(problem.answer)
    mistake = noise.choice(("none", "near", "ten", "sign"))
    if mistake == "near":
        value += noise.choice((-3, -2, -1, 1, 2, 3))
    elif mistake == "ten":
        value += noise.choice((-10, 10))
    elif mistake == "sign":
        value = -value
    return str(value)


def demonstrate(problem: Problem, noise: Noise) -> str:
    return problem.answer


ARITHMETIC = Task(
    name="arithmetic",
    summary="add, subtract or multiply two small whole numbers",
    draw=draw,
    parts=parts,
    attempt=attempt,
    demonstrate=demonstrate,
    utility={"correct": 1.0, "digits": 1.0},
)
