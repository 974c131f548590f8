"""Style: "list 7 3 5 =" may be answered by "3 5 7" or "7 5 3". Both are correct; the truth prefers ascending ones.

Demonstrations show both styles equally often, so that a policy that imitates them has no preference, and one that
learned from preferences shows it: its share of ascending lists is its win rate.
"""

from __future__ import annotations

from dataclasses import replace

from ascent.tasks.noise import Noise
from ascent.tasks.task import Problem, Task, overlap

SHORTEST, LONGEST = 3, 5


def draw(noise: Noise) -> Problem:
    """Distinct digits: with a repeated one, near-constant lists would look the same in both styles."""
    left = [str(digit) for digit in range(10)]
    digits = [left.pop(noise.whole(0, len(left) - 1)) for _ in range(noise.whole(SHORTEST, LONGEST))]
    answer = " ".join(sorted(digits))
    return Problem(f"list {' '.join(digits)} =", answer, answer)


def parts(answer: str, text: str) -> dict[str, float]:
    """correct: the right digits, ascending or descending; digits: share of right ones; ascending: the wanted style."""
    want, got = answer.split(" "), text.strip().split(" ")
    ascending, descending = got == want, got == want[::-1]
    return {"correct": float(ascending or descending), "digits": overlap(want, got), "ascending": float(ascending)}


def attempt(problem: Problem, noise: Noise) -> str:
    """One of the two styles, each half of the time."""
    digits = problem.answer.split(" ")
    return " ".join(digits if noise.unit() < 0.5 else digits[::-1])


STYLE = Task(
    name="style",
    summary="list digits in either order; ascending is preferred",
    draw=draw,
    parts=parts,
    attempt=attempt,
    demonstrate=attempt,
    utility={"ascending": 1.0},
)


def backwards(noise: Noise) -> Problem:
    """The same problems, to be answered in descending order."""
    problem = draw(noise)
    return replace(problem, answer=" ".join(reversed(problem.answer.split(" "))))


def descending(answer: str, text: str) -> dict[str, float]:
    """correct: the digits in descending order; listed: in either order; digits: share of right ones."""
    found = parts(answer, text)  # which calls the style of the answer, whichever it is, ascending
    return {"correct": found["ascending"], "listed": found["correct"], "digits": found["digits"]}


def mostly_ascending(problem: Problem, noise: Noise) -> str:
    """What people wrote before anyone asked them what they prefer."""
    digits = problem.answer.split(" ")
    return " ".join(digits[::-1] if noise.unit() < 0.7 else digits)


# For the quick start with feedback: what was demonstrated is not what is wanted.
CONTRARY = replace(
    STYLE,
    name="contrary",
    summary="list digits in descending order, although 70% of the demonstrations ascend",
    draw=backwards,
    parts=descending,
    demonstrate=mostly_ascending,
    utility={"correct": 1.0},
)
