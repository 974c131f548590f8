"""Pairs, rankings and thumbs from a row's raw answers: what is shared becomes the prompt, ties and copies are named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ascent.data import columns as values
from ascent.data.columns import Columns
from ascent.data.errors import RowError
from ascent.records import Message, Pair, Prompt, Ranking, UnpairedExample

Turns = tuple[Message, ...]

# Transcripts in one string, as in Anthropic's HH files.
SPEAKER = re.compile(r"\n\n(Human|Assistant):")
GOLD = ("gold", "reference")  # the second is TRL's, for TPO
RATINGS = ("ratings", "scores", "overall_scores")
RANKS = ("ranks", "rank", "ranking")
TEXT_KEYS = ("response", "answer", "text", "completion", "content")
THUMB_COLUMNS = ("label", "score")
RATING_KEYS = ("overall_score", "rating", "score")


def pair(fields: Columns, asked: Turns, chosen: Any, rejected: Any) -> Pair:
    """Answers may be text, messages, or whole conversations that repeat the question; what they share is the prompt."""
    won, lost = _turns(chosen, "chosen", asked), _turns(rejected, "rejected", asked)
    shared = 0
    while shared < min(len(won), len(lost)) and won[shared] == lost[shared]:
        shared += 1
    if won == lost:
        raise RowError("equal", "chosen equals rejected, which says nothing; remove the row")
    prompt, won, lost = (*asked, *won[:shared]), won[shared:], lost[shared:]
    if not won or not lost:
        raise RowError(
            "type", "one answer is the beginning of the other conversation; both need an answer of their own"
        )
    for name, turns in (("chosen", won), ("rejected", lost)):
        if turns[0].role != "assistant":
            raise RowError("type", f"{name} differs from its partner in the {turns[0].role}'s turn; a pair shares them")
    if not any(message.role == "user" for message in prompt):
        raise RowError(
            "missing", "no prompt: give a column 'prompt', or let both conversations start with the question"
        )
    raw = fields.optional("margin")
    margin = None if raw is None else values.number(raw, "margin")
    return Pair(Prompt(fields.id, prompt, _gold(fields, prompt)), won, lost, margin)


def _gold(fields: Columns, prompt: Turns) -> str | None:
    """A third answer, better than both: for algorithms that imitate one beside every pair."""
    name = next((name for name in GOLD if fields.has(name)), None)
    if name is None:
        return None
    turns = _turns(fields.get(name), name, prompt)
    if len(turns) != 1 or turns[0].role != "assistant":
        raise RowError("type", f"{name} holds {len(turns)} messages; a gold answer is one turn of the assistant")
    return turns[0].content


def _turns(value: Any, name: str, asked: Turns) -> Turns:
    if isinstance(value, str):
        value = values.text(value, name)
        if not value.startswith("\n\nHuman:"):
            return (Message("assistant", value),)
        parts = SPEAKER.split(value)[1:]
        roles = {"Human": "user", "Assistant": "assistant"}
        spoken = [
            {"role": roles[who], "content": said.strip()} for who, said in zip(parts[::2], parts[1::2], strict=True)
        ]
        return values.messages(spoken, name)
    found = value if _is_turns(value) else values.messages([value] if isinstance(value, Mapping) else value, name)
    return found[len(asked) :] if asked and found[: len(asked)] == asked else found


def _is_turns(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, Message) for item in value)


def ranking(fields: Columns, prompt: Prompt, column: str) -> Ranking:
    """Answers with ranks (1 is best), with ratings (high is best), or already best first in `ranked`.

    Of answers with an equal rank or rating the first is kept and the others are counted: a Ranking has no ties.
    """
    items = values.listed(fields.get(column), column)
    answers = [values.answer(_text_of(item), f"{column}[{place}]") for place, item in enumerate(items)]
    places = _places(fields, column, items)
    if len(places) != len(answers):
        raise RowError("type", f"{len(answers)} answers but {len(places)} ranks or ratings; give one for each")
    if len(answers) < 2:
        raise RowError("missing", f"{column} has {len(answers)} answer(s); a ranking compares at least 2")
    found: dict[float, Turns] = {}
    for place, answer in sorted(zip(places, answers, strict=True), key=lambda each: each[0]):
        if place in found:
            fields.notes["answers left out because another has the same rating"] += 1
        else:
            found[place] = answer
    if len(found) < 2:
        raise RowError("equal", f"all {len(answers)} answers have the same rating, which says nothing; remove the row")
    if len(set(found.values())) != len(found):
        raise RowError("equal", f"{column} holds the same answer twice with different ratings; remove one of them")
    return Ranking(prompt, tuple(found.values()))


def _text_of(item: Any) -> Any:
    """The answer itself, where each comes in an object of its own (UltraFeedback, Nectar)."""
    if isinstance(item, Mapping) and "role" not in item:
        return next((item[key] for key in TEXT_KEYS if item.get(key) is not None), None)
    return item


def _places(fields: Columns, column: str, items: list[Any]) -> list[float]:
    """A number for each answer, small is good."""
    for names, sign in ((RANKS, 1.0), (RATINGS, -1.0)):
        for name in names:
            if fields.has(name):
                numbers = values.listed(fields.get(name), name)
                return [sign * values.number(each, f"{name}[{place}]") for place, each in enumerate(numbers)]
    if column == "ranked":
        return [float(place) for place in range(len(items))]
    if all(isinstance(item, Mapping) for item in items):
        for key, sign in (("rank", 1.0), *((key, -1.0) for key in RATING_KEYS)):
            if all(item.get(key) is not None for item in items):
                return [sign * values.number(item[key], f"{column}.{key}") for item in items]
    wanted = ", ".join((*RATINGS[:2], RANKS[0]))
    raise RowError("missing", f"{column} has no order: add a column {wanted}, or name the column 'ranked' (best first)")


def judged(fields: Columns, prompt: Prompt, answered: Turns) -> UnpairedExample:
    name = fields.first(THUMB_COLUMNS)
    return UnpairedExample(prompt, answered, values.label(fields.get(name), name))
