"""Sort digits: "sort 7 3 5 =" is answered by "3 5 7".

Problems with the same digits in another order share a key, so no held-out answer is in the training split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ascent.tasks.keyed_random import KeyedRandom
from ascent.tasks.task import Problem, Task, overlap, position_accuracy

SHORTEST, LONGEST = 3, 6


def draw_digits(shortest: int, longest: int) -> Callable[[KeyedRandom], Problem]:
    """A generator of problems with this many digits."""

    def draw(rng: KeyedRandom) -> Problem:
        digits = [str(rng.integer(0, 9)) for _ in range(rng.integer(shortest, longest))]
        answer = " ".join(sorted(digits))
        return Problem(f"sort {' '.join(digits)} =", answer, answer)

    return draw


def parts(answer: str, text: str) -> dict[str, float]:
    """correct; format: single digits with one space between; digits: the right ones; places: in the right places."""
    want, got = answer.split(" "), text.strip().split(" ")
    shaped = all(len(item) == 1 and item in "0123456789" for item in got)
    got = [item for item in got if len(item) == 1 and item in "0123456789"]
    return {
        "correct": float(shaped and got == want),
        "format": float(shaped),
        "digits": overlap(want, got),
        "places": position_accuracy(want, got),
    }


def attempt(problem: Problem, rng: KeyedRandom) -> str:
    """The sorted digits with zero to three mistakes."""
    digits = problem.answer.split(" ")
    for _ in range(rng.integer(0, 3)):
        place = rng.integer(0, len(digits) - 1)
        mistake = rng.choice(("swap", "drop", "change"))
        if mistake == "swap":
            other = rng.integer(0, len(digits) - 1)
            digits[place], digits[other] = digits[other], digits[place]
        elif mistake == "drop" and len(digits) > 1:
            del digits[place]
        else:
            digits[place] = str(rng.integer(0, 9))
    return " ".join(digits)


SORT_DIGITS = Task(
    name="sort_digits",
    summary=f"sort {SHORTEST} to {LONGEST} digits in ascending order",
    draw=draw_digits(SHORTEST, LONGEST),
    parts=parts,
    attempt=attempt,
    utility={"correct": 1.0, "places": 1.0},
)

SORT_SHORT = replace(
    SORT_DIGITS, name="sort_short", summary="sort 2 to 6 digits", draw=draw_digits(2, 6)
)
SORT_LONG = replace(
    SORT_DIGITS, name="sort_long", summary="sort 7 to 10 digits", draw=draw_digits(7, 10)
)

# For the quick start: SFT on lists of up to 4 digits, then RL on sort_long. A demonstration starts with a space:
# its first digit is then the same token as in the question (" 3", not "3"), and a model can count it with the others.
SORT_UP_TO_FOUR = replace(
    SORT_DIGITS,
    name="sort_up_to_four",
    summary="sort 2 to 4 digits",
    draw=draw_digits(2, 4),
    demonstrate=lambda problem, rng: f" {problem.answer}",
)
