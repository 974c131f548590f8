"""What a set of records looks like: lengths of its parts, copies, overlaps. Plain Python, for `ascent inspect`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ascent.data.schemas import Record
from ascent.records import Example, Message, Pair, Prompt, StepExample, UnpairedExample


class Lengths(NamedTuple):
    """Five numbers of a list of lengths."""

    number: int
    mean: float
    median: int
    p95: int
    longest: int


def parts(record: Record) -> list[tuple[str, str]]:
    """(column, text) for each part of a record; a column collects what is compared between data sets."""
    if isinstance(record, Prompt):
        return [("prompt", _text(record.messages))]
    if isinstance(record, Example):
        asked = [("prompt", _text(record.messages[:-1]))] if len(record.messages) > 1 else []
        return [*asked, ("SFT", record.messages[-1].content)]
    asked = [("prompt", _text(record.prompt.messages))]
    if isinstance(record, Pair):
        return [*asked, ("chosen", _text(record.chosen)), ("rejected", _text(record.rejected))]
    if isinstance(record, UnpairedExample):
        return [*asked, ("good" if record.good else "bad", _text(record.answer))]
    if isinstance(record, StepExample):
        return [*asked, *(("step", step) for step in record.steps)]
    best, *others = record.answers
    return [*asked, ("best", _text(best)), *(("others", _text(answer)) for answer in others)]


def lengths(records: Iterable[Record], measure: Callable[[str], int]) -> dict[str, list[int]]:
    """The lengths of every column, in the order in which columns appear."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for record in records:
        for column, text in parts(record):
            found[column].append(measure(text))
    return dict(found)


def five(values: Sequence[int]) -> Lengths:
    ordered = sorted(values)
    return Lengths(
        number=len(ordered),
        mean=sum(ordered) / len(ordered),
        median=ordered[(len(ordered) - 1) // 2],
        p95=ordered[-(-95 * len(ordered) // 100) - 1],
        longest=ordered[-1],
    )


def histogram(columns: Mapping[str, Sequence[int]]) -> list[tuple[int, int, dict[str, int]]]:
    """(from, to, count in each column), in bins that double: lengths of text are skewed. Empty ends are left out."""
    places = {name: Counter(value.bit_length() for value in values) for name, values in columns.items()}
    used = sorted({place for counts in places.values() for place in counts})
    return [
        (2 ** (place - 1) if place else 0, 2**place - 1, {name: counts[place] for name, counts in places.items()})
        for place in range(used[0], used[-1] + 1)
    ]


def copies(records: Sequence[Record]) -> tuple[int, int]:
    """How many records equal an earlier one, and how many ask what an earlier one asked."""
    whole = len(records) - len({tuple(parts(record)) for record in records})
    asked = [question for record in records if (question := question_of(record)) is not None]
    return whole, len(asked) - len(set(asked))


def in_common(first: Sequence[Record], second: Sequence[Record]) -> int:
    """How many different questions both sets ask: a held-out set should share none with its training set."""
    one = {question_of(record) for record in first} - {None}
    return len(one & {question_of(record) for record in second})


def question_of(record: Record) -> str | None:
    found = parts(record)[0]
    return found[1] if found[0] == "prompt" else None


def chosen_longer(records: Iterable[Record]) -> float | None:
    """Share of pairs whose chosen answer is the longer one; far from a half, a reward model may learn length."""
    pairs = [record for record in records if isinstance(record, Pair)]
    if not pairs:
        return None
    sizes = [(len(_text(pair.chosen)), len(_text(pair.rejected))) for pair in pairs]
    return sum((won > lost) + (won == lost) / 2 for won, lost in sizes) / len(sizes)


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages)
