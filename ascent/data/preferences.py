"""Pairs, rankings and unpaired examples from the raw columns of a row. Ties and duplicates are reported."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from ascent.data import columns as values
from ascent.data.columns import Columns
from ascent.data.errors import RowError
from ascent.data.json_text import parse_messages
from ascent.records import Message, Pair, Prompt, Ranking, UnpairedExample

Turns = tuple[Message, ...]

# Anthropic's HH files hold a transcript in one string.
SPEAKER = re.compile(r"\n\n(Human|Assistant):")
GOLD = ("gold", "reference")  # the second is TRL's, for TPO
RATINGS = ("ratings", "scores", "overall_scores")
RANKS = ("ranks", "rank", "ranking")
TEXT_KEYS = ("response", "answer", "text", "completion", "content")
REPEATED, TIED = (
    "answers left out because they are repeated",
    "pairs of tied answers, which hold no preference",
)
LABEL_COLUMNS = ("label", "score")
RATING_KEYS = ("overall_score", "rating", "score")


def make_pair(columns: Columns, prompt: Turns, chosen: Any, rejected: Any) -> Pair:
    """Answers are text, messages, or conversations that repeat the prompt; their common prefix joins the prompt."""
    prompt, won = _split_prompt(_read_turns(chosen, "chosen"), "chosen", prompt)
    prompt, lost = _split_prompt(_read_turns(rejected, "rejected"), "rejected", prompt)
    shared = 0
    while shared < min(len(won), len(lost)) and _is_same(won[shared], lost[shared]):
        shared += 1
    if shared == len(won) == len(lost) and won != lost:
        shared -= 1  # answers that differ in white space alone: whether a template keeps it shows in their tokens
    if won == lost:
        raise RowError("equal", "chosen equals rejected, so there is no preference; remove the row")
    prompt, won, lost = (*prompt, *won[:shared]), won[shared:], lost[shared:]
    if not won or not lost:
        raise RowError(
            "type",
            "one answer is the beginning of the other conversation; both need an answer of their own",
        )
    for name, turns in (("chosen", won), ("rejected", lost)):
        if turns[0].role != "assistant":
            raise RowError(
                "type",
                f"{name} differs from its partner in the {turns[0].role}'s turn; a pair shares them",
            )
    if not any(message.role == "user" for message in prompt):
        raise RowError(
            "missing",
            "no prompt: give a column 'prompt', or let both conversations start with the question",
        )
    raw = columns.optional("margin")
    margin = None if raw is None else values.number(raw, "margin")
    return Pair(Prompt(columns.id, prompt, _read_gold(columns, prompt)), won, lost, margin)


def _read_gold(columns: Columns, prompt: Turns) -> str | None:
    """A third answer that algorithms such as TPO imitate."""
    name = next((name for name in GOLD if columns.has(name)), None)
    if name is None:
        return None
    _, turns = _split_prompt(_read_turns(columns.get(name), name), name, prompt)
    if len(turns) != 1 or turns[0].role != "assistant":
        raise RowError(
            "type",
            f"{name} holds {len(turns)} messages; a gold answer is one turn of the assistant",
        )
    return turns[0].content


def _read_turns(value: Any, name: str) -> Turns:
    """The messages of an answer, or of a whole conversation."""
    value = parse_messages(value, name) if isinstance(value, str) else value
    if isinstance(value, str):
        value = values.text(value, name)
        if not value.startswith("\n\nHuman:"):
            return (Message("assistant", value),)
        parts = SPEAKER.split(value)[1:]
        roles = {"Human": "user", "Assistant": "assistant"}
        turns = [
            {"role": roles[speaker], "content": text.strip()}
            for speaker, text in zip(parts[::2], parts[1::2], strict=True)
        ]
        return values.messages(turns, name)
    if isinstance(value, tuple) and all(isinstance(item, Message) for item in value):
        return value
    return values.messages([value] if isinstance(value, Mapping) else value, name)


def _split_prompt(turns: Turns, name: str, prompt: Turns) -> tuple[Turns, Turns]:
    """The prompt, and the answer without the prompt where the turns repeat it.

    White space around texts does not matter, and a system message may be on one side only; it joins the prompt.
    """
    if prompt and len(turns) > len(prompt) and all(map(_is_same, turns, prompt)):
        return prompt, turns[len(prompt) :]
    if turns[0].role not in ("system", "user"):
        return prompt, turns
    (own, asked), (system, rest) = _split_system(prompt), _split_system(turns)
    if len(rest) < len(asked) or not all(map(_is_same, rest, asked)):
        if not system and prompt[-1].role == "assistant" and not _is_same(rest[0], asked[0]):
            return prompt, turns  # they go on where the prompt ends
        raise RowError(
            "type",
            f"{name} is a conversation that does not begin with the prompt of its row, {asked[0].content!r:.40}, so "
            "the question would be there twice; give the same turns, or remove the prompt's column",
        )
    has_text = [any(message.content.strip() for message in each) for each in (own, system)]
    if all(has_text) and not _is_same(own[0], system[0]):
        raise RowError(
            "type",
            f"{name} has another system message than the prompt of its row; give the same, or one",
        )
    return (*(own if has_text[0] or not system else system), *asked), rest[len(asked) :]


def _split_system(turns: Turns) -> tuple[Turns, Turns]:
    first = 1 if turns and turns[0].role == "system" else 0
    return turns[:first], turns[first:]


def _is_same(one: Message, other: Message) -> bool:
    return (one.role, one.content.strip(), one.extra) == (
        other.role,
        other.content.strip(),
        other.extra,
    )


def make_ranking(columns: Columns, prompt: Prompt, column: str) -> Ranking:
    """Answers with ranks (1 is best), with ratings (high is best), or already best first in `ranked`.

    Answers with equal rank or rating are tied; their pairs are counted. An answer that is there twice is kept once.
    """
    items = values.as_list(columns.get(column), column)
    answers = [
        values.answer(_answer_text(item), f"{column}[{index}]") for index, item in enumerate(items)
    ]
    ranks = _read_ranks(columns, column, items)
    if len(ranks) != len(answers):
        raise RowError(
            "type", f"{len(answers)} answers but {len(ranks)} ranks or ratings; give one for each"
        )
    if len(answers) < 2:
        raise RowError(
            "missing", f"{column} has {len(answers)} answer(s); a ranking compares at least 2"
        )
    found: dict[Turns, float] = {}
    for rank, answer in sorted(zip(ranks, answers, strict=True), key=lambda each: each[0]):
        if found.setdefault(answer, rank) != rank:
            raise RowError(
                "equal",
                f"{column} holds the same answer twice with different ratings; remove one of them",
            )
    places = sorted(set(found.values()))
    if len(places) < 2:
        raise RowError("equal", f"all {len(answers)} answers have the same rating; remove the row")
    repeated = len(answers) - len(found)
    tied = sum(first == second for first, second in combinations(found.values(), 2))
    columns.notes += Counter({REPEATED: repeated, TIED: tied})  # only what is more than 0
    return Ranking(prompt, tuple(found), tuple(places.index(rank) for rank in found.values()))


def _answer_text(item: Any) -> Any:
    """The text of an answer that is an object (UltraFeedback, Nectar)."""
    if isinstance(item, Mapping) and "role" not in item:
        return next((item[key] for key in TEXT_KEYS if item.get(key) is not None), None)
    return item


def _read_ranks(columns: Columns, column: str, items: list[Any]) -> list[float]:
    """A number per answer; the smallest is the best."""
    for names, sign in ((RANKS, 1.0), (RATINGS, -1.0)):
        for name in names:
            if columns.has(name):
                numbers = values.as_list(columns.get(name), name)
                return [
                    sign * values.number(each, f"{name}[{index}]")
                    for index, each in enumerate(numbers)
                ]
    if column == "ranked":
        return [float(index) for index in range(len(items))]
    if all(isinstance(item, Mapping) for item in items):
        for key, sign in (("rank", 1.0), *((key, -1.0) for key in RATING_KEYS)):
            if all(item.get(key) is not None for item in items):
                return [sign * values.number(item[key], f"{column}.{key}") for item in items]
    wanted = ", ".join((*RATINGS[:2], RANKS[0]))
    raise RowError(
        "missing",
        f"{column} has no order: add a column {wanted}, or name the column 'ranked' (best first)",
    )


def make_unpaired(columns: Columns, prompt: Prompt, answer: Turns) -> UnpairedExample:
    name = columns.first(LABEL_COLUMNS)
    return UnpairedExample(prompt, answer, values.label(columns.get(name), name))
