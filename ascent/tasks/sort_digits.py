"""Sort digits: "sort 7 3 5 =" is answered by "3 5 7".

Problems with the same digits in another order share a key, so a held-out answer was never shown in training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ascent.tasks.noise import Noise
from ascent.tasks.task import Problem, Task, in_place, overlap

SHORTEST, LONGEST = 3, 6


def between(shortest: int, longest: int) -> Callable[[Noise], Problem]:
    """Problems of so many digits."""

    def draw(noise: Noise) -> Problem:
        digits = [str(noise.whole(0, 9)) for _ in range(noise.whole(shortest, longest))]
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
        "places": in_place(want, got),
    }


def attempt(problem: Problem, noise: Noise) -> str:
    """The sorted digits after none to three small mistakes."""
    digits = problem.answer.split(" ")
    for _ in range(noise.whole(0, 3)):
        place = noise.whole(0, len(digits) - 1)
        mistake = noise.choice(("swap", "drop", "change"))
        if mistake == "swap":
            other = noise.whole(0, len(digits) - 1)
            digits[place], digits[other] = digits[other], digits[place]
        elif mistake == "drop" and len(digits) > 1:
            del digits[place]
        else:
            digits[place] = str(noise.whole(0, 9))
    return " ".join(digits)


def demonstrate(problem: Problem, noise: Noise) -> str:
    return problem.answer


SORT_DIGITS = Task(
    name="sort_digits",
    summary=f"sort {SHORTEST} to {LONGEST} digits in ascending order",
    draw=between(SHORTEST, LONGEST),
    parts=parts,
    attempt=attempt,
    demonstrate=demonstrate,
    utility={"correct": 1.0, "places": 1.0},
)

# For the quick start: imitate on short lists, then learn long ones from the verifier alone.
SORT_SHORT = replace(SORT_DIGITS, name="sort_short", summary="sort 2 to 6 digits", draw=between(2, 6))
SORT_LONG = replace(SORT_DIGITS, name="sort_long", summary="sort 7 to 10 digits", draw=between(7, 10))
