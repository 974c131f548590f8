"""Digest: a synthetic twin of TL;DR summarization. A post tells four facts among chatter; the summary keeps the facts.

    POST: Hi all. Anna lost a ring. It was in Oslo. Ben says hello. It was on Friday.
    TL;DR:    ->    Anna lost a ring in Oslo on Friday.

Facts are values from known lists (who, what, where, when), so what a summary kept, left out or made up can be counted.
One sentence names somebody who is not part of the story.
"""

from __future__ import annotations

import re

from ascent.tasks.noise import Noise
from ascent.tasks.task import Problem, Task, word_count

WHO = ("Anna", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivan", "Jill", "Kurt", "Lena")
WHAT = ("ring", "coat", "bike", "book", "hat", "key", "lamp", "map", "pen", "phone", "scarf", "watch")
WHERE = ("Oslo", "Rome", "Lima", "Cairo", "Delhi", "Kyoto", "Lagos", "Paris", "Quito", "Seoul")
WHEN = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FACTS = frozenset((*WHO, *WHAT, *WHERE, *WHEN))
CHATTER = (
    *("Hi all.", "Long story.", "I am still upset.", "We looked everywhere.", "Thanks for reading."),
    *("It rained.", "Nobody helped.", "I was tired.", "What a day."),
)
WORD = re.compile(r"[A-Za-z]+")
# A summary within this many words is brief; brevity is gone at twice as many.
ROOM = 12


def draw(noise: Noise) -> Problem:
    who, what, where, when = (noise.choice(names) for names in (WHO, WHAT, WHERE, WHEN))
    stranger = noise.choice([name for name in WHO if name != who])
    told = [f"{who} lost a {what}.", f"It was in {where}.", f"It was on {when}."]
    chatter = list(CHATTER)
    extra = [chatter.pop(noise.whole(0, len(chatter) - 1)) for _ in range(noise.whole(1, 3))]
    for sentence in [*extra, f"{stranger} says hello."]:
        told.insert(noise.whole(0, len(told)), sentence)
    answer = f"{who} lost a {what} in {where} on {when}."
    return Problem(f"POST: {' '.join(told)}\nTL;DR:", answer, answer)


def parts(answer: str, text: str) -> dict[str, float]:
    """correct: every fact, none made up, brief; facts: share kept; faithful: share of named values that are facts."""
    facts = FACTS.intersection(WORD.findall(answer))
    named = FACTS.intersection(WORD.findall(text))
    kept = len(facts & named) / len(facts)
    faithful = len(facts & named) / len(named) if named else 0.0
    brief = min(1.0, max(0.0, 2 - word_count(text) / ROOM)) if named else 0.0
    return {
        "correct": float(kept == 1 and faithful == 1 and brief == 1),
        "facts": kept,
        "faithful": faithful,
        "brief": brief,
    }


def attempt(problem: Problem, noise: Noise) -> str:
    """A summary that may leave facts out, get one wrong, or go on and on."""
    who, what, where, when = (word for word in WORD.findall(problem.answer) if word in FACTS)
    if noise.unit() < 0.3:
        who = noise.choice(WHO)
    said = [f"{who} lost a {what}", f"in {where}", f"on {when}"]
    for place in (2, 1):
        if noise.unit() < 0.3:
            del said[place]
    chatter = [noise.choice(CHATTER) for _ in range(noise.whole(2, 6))] if noise.unit() < 0.4 else []
    return " ".join([f"{' '.join(said)}.", *chatter])


def demonstrate(problem: Problem, noise: Noise) -> str:
    """The same facts in one of three ways of saying them."""
    who, what, where, when = (word for word in WORD.findall(problem.answer) if word in FACTS)
    ways = (problem.answer, f"On {when} {who} lost a {what} in {where}.", f"{who} lost a {what} on {when} in {where}.")
    return noise.choice(ways)


DIGEST = Task(
    name="digest",
    summary="summarize a post in one sentence that keeps its four facts",
    draw=draw,
    parts=parts,
    attempt=attempt,
    demonstrate=demonstrate,
    utility={"facts": 1.0, "faithful": 0.5, "brief": 0.5},
)
