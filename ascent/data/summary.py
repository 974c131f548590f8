"""Statistics of a dataset for `ascent inspect`: lengths, duplicates, overlap of prompts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ascent.data.schemas import Record
from ascent.records import Example, Message, Pair, Prompt, StepExample, UnpairedExample


class LengthStats(NamedTuple):
    texts: int
    mean: float
    median: int
    p95: int
    longest: int


def text_columns(record: Record) -> list[tuple[str, str]]:
    """(column, text) for each part of a record."""
    if isinstance(record, Prompt):
        return [("prompt", _text(record.messages))]
    if isinstance(record, Example):
        prompt = [("prompt", _text(record.messages[:-1]))] if len(record.messages) > 1 else []
        return [*prompt, ("SFT", _text(record.messages[-1:]))]
    prompt = [("prompt", _text(record.prompt.messages))]
    if isinstance(record, Pair):
        return [*prompt, ("chosen", _text(record.chosen)), ("rejected", _text(record.rejected))]
    if isinstance(record, UnpairedExample):
        return [*prompt, ("good" if record.good else "bad", _text(record.answer))]
    if isinstance(record, StepExample):
        return [*prompt, *(("step", step) for step in record.steps)]
    best, *others = record.answers
    return [*prompt, ("best", _text(best)), *(("others", _text(answer)) for answer in others)]


def lengths(records: Iterable[Record], measure: Callable[[str], int]) -> dict[str, list[int]]:
    """The lengths of the texts of every column."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for record in records:
        for column, text in text_columns(record):
            found[column].append(measure(text))
    return dict(found)


def summarize(values: Sequence[int]) -> LengthStats:
    ordered = sorted(values)
    return LengthStats(
        texts=len(ordered),
        mean=sum(ordered) / len(ordered),
        median=ordered[(len(ordered) - 1) // 2],
        p95=ordered[-(-95 * len(ordered) // 100) - 1],
        longest=ordered[-1],
    )


def histogram(columns: Mapping[str, Sequence[int]]) -> list[tuple[int, int, dict[str, int]]]:
    """(from, to, count per column), in bins that double in width."""
    bins = {
        name: Counter(value.bit_length() for value in values) for name, values in columns.items()
    }
    used = sorted({bin_ for counts in bins.values() for bin_ in counts})
    return [
        (
            2 ** (bin_ - 1) if bin_ else 0,
            2**bin_ - 1,
            {name: counts[bin_] for name, counts in bins.items()},
        )
        for bin_ in range(used[0], used[-1] + 1)
    ]


def count_duplicates(records: Sequence[Record]) -> tuple[int, int]:
    """How many records equal an earlier one, and how many have the prompt of an earlier one."""
    duplicates = len(records) - len({tuple(text_columns(record)) for record in records})
    prompts = [prompt for record in records if (prompt := prompt_text(record)) is not None]
    return duplicates, len(prompts) - len(set(prompts))


def count_shared_prompts(first: Sequence[Record], second: Sequence[Record]) -> int:
    """Distinct prompts in both sets; a held-out set should share none with the training set."""
    prompts = {prompt_text(record) for record in first} - {None}
    return len(prompts & {prompt_text(record) for record in second})


def prompt_text(record: Record) -> str | None:
    found = text_columns(record)[0]
    return found[1] if found[0] == "prompt" else None


def chosen_longer_frac(records: Iterable[Record]) -> float | None:
    """Share of pairs whose chosen answer is longer; far from 0.5, a reward model may learn length."""
    pairs = [record for record in records if isinstance(record, Pair)]
    if not pairs:
        return None
    sizes = [(len(_text(pair.chosen)), len(_text(pair.rejected))) for pair in pairs]
    return sum((won > lost) + (won == lost) / 2 for won, lost in sizes) / len(sizes)


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(message.content + message.extra for message in messages)
