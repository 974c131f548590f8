"""Running sum: "add 3 8 2 5 =" is answered by its running totals, "3 11 13 18". Every total is a step with a reward.

For the row `grpo_process`: `steps` gives the end of each total in the text and whether it is right. An answer that ends
too early gets a wrong last step; without it, `grpo_process` learns to stop before the harder additions.
"""

from __future__ import annotations

import re
from itertools import accumulate

from ascent.tasks.keyed_random import KeyedRandom
from ascent.tasks.task import Problem, StepScore, Task, position_accuracy

FEWEST, MOST = 3, 5
STEP = re.compile(r"\S+")


def draw(rng: KeyedRandom) -> Problem:
    numbers = [rng.integer(1, 9) for _ in range(rng.integer(FEWEST, MOST))]
    answer = " ".join(map(str, accumulate(numbers)))
    return Problem(
        f"add {' '.join(map(str, numbers))} =", answer, " ".join(map(str, sorted(numbers)))
    )


def steps(answer: str, text: str) -> tuple[StepScore, ...]:
    """One per word of the text: 1 for the right total at its position, else 0.

    Where totals are missing, one more wrong step follows at the end of the text.
    """
    want = answer.split(" ")
    found = [
        StepScore(match.end(), float(place < len(want) and match[0] == want[place]))
        for place, match in enumerate(STEP.finditer(text))
    ]
    return tuple(found) if len(found) >= len(want) else (*found, StepScore(len(text) + 1, 0.0))


def parts(answer: str, text: str) -> dict[str, float]:
    """correct: every total is right; total: the last one is; steps: share of right totals in their places."""
    want, got = answer.split(" "), text.strip().split(" ")
    return {
        "correct": float(want == got),
        "total": float(want[-1] == got[-1]),
        "steps": position_accuracy(want, got),
    }


def attempt(problem: Problem, rng: KeyedRandom) -> str:
    """The totals, perhaps with a wrong addition, carried on or not, or too few."""
    totals = [int(total) for total in problem.answer.split(" ")]
    mistake = rng.choice(("none", "carried", "once", "short"))
    place = rng.integer(1, len(totals) - 1)
    if mistake == "short":
        del totals[place:]
    elif mistake != "none":
        off = rng.choice((-2, -1, 1, 2))
        last = len(totals) if mistake == "carried" else place + 1
        totals[place:last] = [total + off for total in totals[place:last]]
    return " ".join(map(str, totals))


RUNNING_SUM = Task(
    name="running_sum",
    summary=f"the running totals of {FEWEST} to {MOST} digits, a reward for each",
    draw=draw,
    parts=parts,
    attempt=attempt,
    utility={"correct": 1.0, "steps": 1.0},
    steps=steps,
)
