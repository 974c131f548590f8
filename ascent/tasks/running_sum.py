"""Running sum: "add 3 8 2 5 =" is answered by its running totals, "3 11 13 18". Every total is a step with a reward.

For the row `grpo_process`: `steps` says where each total ends in the text and whether it is right. An answer that ends
too early ends with a wrong step, so that saying less is no way around the reward: with totals alone, `grpo_process`
learnt to stop where additions get harder than the average.
"""

from __future__ import annotations

import re
from itertools import accumulate

from ascent.tasks.noise import Noise
from ascent.tasks.task import Problem, StepScore, Task, in_place

FEWEST, MOST = 3, 5
STEP = re.compile(r"\S+")


def draw(noise: Noise) -> Problem:
    numbers = [noise.whole(1, 9) for _ in range(noise.whole(FEWEST, MOST))]
    answer = " ".join(map(str, accumulate(numbers)))
    return Problem(f"add {' '.join(map(str, numbers))} =", answer, " ".join(map(str, sorted(numbers))))


def steps(answer: str, text: str) -> tuple[StepScore, ...]:
    """One for each word of the text: 1 where it is the total that belongs there, else 0; words too many are wrong.

    Where totals are missing, one more that is wrong, behind the text: it is the end itself that was wrong.
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
    return {"correct": float(want == got), "total": float(want[-1] == got[-1]), "steps": in_place(want, got)}


def attempt(problem: Problem, noise: Noise) -> str:
    """The totals; perhaps one addition goes wrong, and what follows it is carried on from there, or it stops early."""
    totals = [int(total) for total in problem.answer.split(" ")]
    mistake = noise.choice(("none", "carried", "once", "short"))
    place = noise.whole(1, len(totals) - 1)
    if mistake == "short":
        del totals[place:]
    elif mistake != "none":
        off = noise.choice((-2, -1, 1, 2))
        last = len(totals) if mistake == "carried" else place + 1
        totals[place:last] = [total + off for total in totals[place:last]]
    return " ".join(map(str, totals))


def demonstrate(problem: Problem, noise: Noise) -> str:
    return problem.answer


RUNNING_SUM = Task(
    name="running_sum",
    summary=f"the running totals of {FEWEST} to {MOST} digits, a reward for each",
    draw=draw,
    parts=parts,
    attempt=attempt,
    demonstrate=demonstrate,
    utility={"correct": 1.0, "steps": 1.0},
    steps=steps,
)
