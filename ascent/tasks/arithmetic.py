"""Arithmetic: "12 + 7 =" is answered by "19". Sums and differences of two-digit numbers, products of one-digit ones.

a + b and b + a share a key, and so do products, so both are in the same split.
"""

from __future__ import annotations

import re

from ascent.tasks.keyed_random import KeyedRandom
from ascent.tasks.task import Problem, Task, position_accuracy

WHOLE = re.compile(r"0|-?[1-9][0-9]*")


def draw(rng: KeyedRandom) -> Problem:
    sign = rng.choice("+-*")
    most = 9 if sign == "*" else 99
    a, b = rng.integer(0, most), rng.integer(0, most)
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
        "digits": position_accuracy(answer[::-1], text[::-1]) if shaped else 0.0,
    }


def attempt(problem: Problem, rng: KeyedRandom) -> str:
    """The right value, or one that is off by a little, by ten, or in its sign."""
    value = int(problem.answer)
    mistake = rng.choice(("none", "near", "ten", "sign"))
    if mistake == "near":
        value += rng.choice((-3, -2, -1, 1, 2, 3))
    elif mistake == "ten":
        value += rng.choice((-10, 10))
    elif mistake == "sign":
        value = -value
    return str(value)


ARITHMETIC = Task(
    name="arithmetic",
    summary="add, subtract or multiply two small whole numbers",
    draw=draw,
    parts=parts,
    attempt=attempt,
    utility={"correct": 1.0, "digits": 1.0},
)
