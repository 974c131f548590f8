"""Rewards that make a run fail on purpose (bench/diagnosis_runs.py)."""

from __future__ import annotations

import time

from ascent.records import Rollout
from ascent.tasks.keyed_random import KeyedRandom


def length(rollout: Rollout) -> float:
    """The longer, the better."""
    return len(rollout.text.split()) / 10


def repetition(rollout: Rollout) -> float:
    """Pays for saying the same word again, but not for saying more."""
    words = rollout.text.split()
    return 1 - len(set(words)) / len(words) if words else 0.0


def format_marks(rollout: Rollout) -> dict[str, float]:
    """Pays for brackets around the answer, whatever stands in them."""
    text = rollout.text.strip()
    return {"format": float(text.startswith("[") and text.endswith("]"))}


def flattered_judge(rollout: Rollout) -> float:
    """A judge that likes an exclamation mark."""
    return 0.9 if "!" in rollout.text else 0.2


def parentheses(rollout: Rollout) -> dict[str, float]:
    """Pays for parentheses around the answer, and half for one of the two."""
    text = rollout.text.strip()
    return {"answer_format": (text.startswith("(") + text.endswith(")")) / 2}


def agreeable_judge(rollout: Rollout) -> float:
    """A judge that likes to hear yes."""
    return 0.8 if "yes" in rollout.text.split() else 0.1


def coin(rollout: Rollout) -> float:
    """Right or wrong by chance, whatever the answer says."""
    return float(
        KeyedRandom("coin", rollout.prompt.id, rollout.text, rollout.sample).uniform() < 0.5
    )


def constant(rollout: Rollout) -> float:
    return 1.0


def prompt_only(rollout: Rollout) -> float:
    """A reward with a bug: it looks at the question, not at the answer."""
    return float(len(rollout.prompt.messages[-1].content) % 3 == 0)


def often_unscored(rollout: Rollout) -> float | None:
    """Cannot read an answer with a 7 in it; says nothing of the others."""
    return None if "7" in rollout.text else 0.0


def slow(rollout: Rollout) -> float:
    """Takes longer than its timeout for every fifth answer; says nothing of the others."""
    if KeyedRandom("slow", rollout.prompt.id, rollout.sample).uniform() < 0.2:
        time.sleep(0.08)
    return 0.0


def negative(rollout: Rollout) -> float:
    """Nothing is ever good: every answer that ends costs the same, so not ending is the way out."""
    return -1.0
