"""Digest: a synthetic TL;DR summarization task. A post tells four facts among chatter; the summary keeps the facts.

    POST: Hi all. Anna lost a ring. It was in Oslo. Ben says hello. It was on Friday.
    TL;DR:    ->    Anna lost a ring in Oslo on Friday.

Facts are values from known lists (who, what, where, when), so kept, missing and invented facts can be counted. One
sentence names a person who is not part of the story.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ascent.tasks.keyed_random import KeyedRandom
from ascent.tasks.task import Problem, Task, word_count

WHO = ("Anna", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivan", "Jill", "Kurt", "Lena")
WHAT = (
    "ring",
    "coat",
    "bike",
    "book",
    "hat",
    "key",
    "lamp",
    "map",
    "pen",
    "phone",
    "scarf",
    "watch",
)
WHERE = ("Oslo", "Rome", "Lima", "Cairo", "Delhi", "Kyoto", "Lagos", "Paris", "Quito", "Seoul")
WHEN = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FACTS = frozenset((*WHO, *WHAT, *WHERE, *WHEN))
CHATTER = (
    *(
        "Hi all.",
        "Long story.",
        "I am still upset.",
        "We looked everywhere.",
        "Thanks for reading.",
    ),
    *("It rained.", "Nobody helped.", "I was tired.", "What a day."),
)
WORD = re.compile(r"[A-Za-z]+")
BRIEF_WORDS = 12  # `brief` is 1 up to this many words and 0 at twice as many


def draw(rng: KeyedRandom) -> Problem:
    who, what, where, when = (rng.choice(names) for names in (WHO, WHAT, WHERE, WHEN))
    stranger = rng.choice([name for name in WHO if name != who])
    sentences = [f"{who} lost a {what}.", f"It was in {where}.", f"It was on {when}."]
    chatter = list(CHATTER)
    extra = [chatter.pop(rng.integer(0, len(chatter) - 1)) for _ in range(rng.integer(1, 3))]
    for sentence in [*extra, f"{stranger} says hello."]:
        sentences.insert(rng.integer(0, len(sentences)), sentence)
    answer = f"{who} lost a {what} in {where} on {when}."
    return Problem(f"POST: {' '.join(sentences)}\nTL;DR:", answer, answer)


def parts(answer: str, text: str) -> dict[str, float]:
    """correct: every fact, none made up, brief; facts: share kept; faithful: share of named values that are facts."""
    facts = FACTS.intersection(WORD.findall(answer))
    named = FACTS.intersection(WORD.findall(text))
    kept = len(facts & named) / len(facts)
    faithful = len(facts & named) / len(named) if named else 0.0
    brief = min(1.0, max(0.0, 2 - word_count(text) / BRIEF_WORDS)) if named else 0.0
    return {
        "correct": float(kept == 1 and faithful == 1 and brief == 1),
        "facts": kept,
        "faithful": faithful,
        "brief": brief,
    }


def attempt(problem: Problem, rng: KeyedRandom) -> str:
    """A summary that may omit facts, get one wrong, or be too long."""
    who, what, where, when = (word for word in WORD.findall(problem.answer) if word in FACTS)
    if rng.uniform() < 0.3:
        who = rng.choice(WHO)
    phrases = [f"{who} lost a {what}", f"in {where}", f"on {when}"]
    for place in (2, 1):
        if rng.uniform() < 0.3:
            del phrases[place]
    chatter = [rng.choice(CHATTER) for _ in range(rng.integer(2, 6))] if rng.uniform() < 0.4 else []
    return " ".join([f"{' '.join(phrases)}.", *chatter])


def demonstrate(problem: Problem, rng: KeyedRandom) -> str:
    """The facts in one of three phrasings."""
    who, what, where, when = (word for word in WORD.findall(problem.answer) if word in FACTS)
    ways = (
        problem.answer,
        f"On {when} {who} lost a {what} in {where}.",
        f"{who} lost a {what} on {when} in {where}.",
    )
    return rng.choice(ways)


DIGEST = Task(
    name="digest",
    summary="summarize a post in one sentence that keeps its four facts",
    draw=draw,
    parts=parts,
    attempt=attempt,
    demonstrate=demonstrate,
    utility={"facts": 1.0, "faithful": 0.5, "brief": 0.5},
)
DIGEST_DRAFTS = replace(
    DIGEST,
    name="digest_drafts",
    summary="digest, with demonstrations of mixed quality: better answers have to come from preferences",
    demonstrate=attempt,
)
