"""Style: "list 7 3 5 =" may be answered by "3 5 7" or "7 5 3". Both are correct; ascending is preferred.

Demonstrations show both styles equally often, so an SFT policy has no preference. The share of ascending lists of a
policy trained on preferences is its win rate.
"""

from __future__ import annotations

from dataclasses import replace

from ascent.tasks.keyed_random import KeyedRandom
from ascent.tasks.task import Problem, Task, overlap

SHORTEST, LONGEST = 3, 5


def draw(rng: KeyedRandom) -> Problem:
    """Distinct digits, so that the two styles differ."""
    left = [str(digit) for digit in range(10)]
    digits = [
        left.pop(rng.integer(0, len(left) - 1)) for _ in range(rng.integer(SHORTEST, LONGEST))
    ]
    answer = " ".join(sorted(digits))
    return Problem(f"list {' '.join(digits)} =", answer, answer)


def parts(answer: str, text: str) -> dict[str, float]:
    """correct: the right digits, ascending or descending; digits: share of right ones; ascending: the wanted style."""
    want, got = answer.split(" "), text.strip().split(" ")
    ascending, descending = got == want, got == want[::-1]
    return {
        "correct": float(ascending or descending),
        "digits": overlap(want, got),
        "ascending": float(ascending),
    }


def attempt(problem: Problem, rng: KeyedRandom) -> str:
    """One of the two styles, each half of the time."""
    digits = problem.answer.split(" ")
    return " ".join(digits if rng.uniform() < 0.5 else digits[::-1])


STYLE = Task(
    name="style",
    summary="list digits in either order; ascending is preferred",
    draw=draw,
    parts=parts,
    attempt=attempt,
    demonstrate=attempt,
    utility={"ascending": 1.0},
)


def draw_descending(rng: KeyedRandom) -> Problem:
    """The same problems, to be answered in descending order."""
    problem = draw(rng)
    return replace(problem, answer=" ".join(reversed(problem.answer.split(" "))))


def descending(answer: str, text: str) -> dict[str, float]:
    """correct: the digits in descending order; listed: in either order; digits: share of right ones."""
    found = parts(answer, text)  # `ascending` there means: in the style of the answer
    return {"correct": found["ascending"], "listed": found["correct"], "digits": found["digits"]}


def mostly_ascending(problem: Problem, rng: KeyedRandom) -> str:
    """70% in the style that is not preferred."""
    digits = problem.answer.split(" ")
    return " ".join(digits[::-1] if rng.uniform() < 0.7 else digits)


# For the quick start with feedback: demonstrations and preferences disagree.
CONTRARY = replace(
    STYLE,
    name="contrary",
    summary="list digits in descending order, although 70% of the demonstrations ascend",
    draw=draw_descending,
    parts=descending,
    demonstrate=mostly_ascending,
    utility={"correct": 1.0},
)
