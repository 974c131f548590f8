"""Schema detection, and the conversions from one kind of record to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, get_args

from ascent.data.schemas import SCHEMAS, Record, RecordKind, Schema
from ascent.records import Example, Pair, Ranking, UnpairedExample


def _all_pairs(record: Ranking) -> list[Record]:
    """The pairs of a ranking, K (K - 1) / 2 without ties; tied answers are no pair."""
    ranked = combinations(zip(record.answers, record.ranks, strict=True), 2)
    return [
        Pair(record.prompt, won, lost) for (won, better), (lost, worse) in ranked if better < worse
    ]


# (from, to): the function, and a note for the user.
CONVERSIONS: dict[tuple[RecordKind, RecordKind], tuple[Callable[[Any], list[Record]], str]] = {
    ("pairs", "rankings"): (
        lambda r: [Ranking(r.prompt, (r.chosen, r.rejected))],
        "each pair is a ranking of two",
    ),
    ("rankings", "pairs"): (_all_pairs, "each ranking becomes all of its pairs"),
    ("pairs", "unpaired"): (
        lambda r: [
            UnpairedExample(r.prompt, r.chosen, True),
            UnpairedExample(r.prompt, r.rejected, False),
        ],
        "chosen answers are labeled good, rejected ones bad",
    ),
    ("pairs", "examples"): (
        lambda r: [Example(r.prompt.id, (*r.prompt.messages, *r.chosen))],
        "chosen answers only",
    ),
    ("rankings", "examples"): (
        lambda r: [Example(r.prompt.id, (*r.prompt.messages, *r.answers[0]))],
        "the best answer of each ranking only",
    ),
    ("pairs", "prompts"): (lambda r: [r.prompt], "answers are not used"),
    ("rankings", "prompts"): (lambda r: [r.prompt], "answers are not used"),
    ("unpaired", "prompts"): (lambda r: [r.prompt], "answers are not used"),
    ("steps", "prompts"): (lambda r: [r.prompt], "answers are not used"),
}


def detect_schema(
    row: dict[str, Any], want: RecordKind | None = None, schemas: Sequence[Schema] = SCHEMAS
) -> Schema:
    """The schema of a file, from one of its rows. `want` decides where several fit."""
    if want is not None and want not in get_args(RecordKind):
        raise ValueError(f"want={want!r}, but it must be one of {', '.join(get_args(RecordKind))}")
    fitting = [schema for schema in schemas if schema.fits(row)]
    for schema in fitting:
        if want is None or schema.kind == want:
            return schema
    for schema in fitting:
        if (schema.kind, want) in CONVERSIONS:
            return schema
    columns = ", ".join(sorted(name for name, value in row.items() if value is not None)) or "none"
    wanted = dict.fromkeys(
        f"{schema.kind}: {schema.name}" for schema in schemas if want in (None, schema.kind)
    )
    known = "; ".join(wanted)
    if fitting:
        raise ValueError(
            f"columns {columns}: this is {fitting[0].kind} ({fitting[0].name}), which cannot be used as {want}; give "
            f"{known} (docs/data.md), or choose an algorithm that learns from {fitting[0].kind}"
        )
    raise ValueError(
        f"columns {columns} fit no known schema; rename them to one of: {known} (docs/data.md)"
    )


def convert(record: Record, kind: RecordKind, want: RecordKind | None) -> list[Record]:
    if want is None or kind == want:
        return [record]
    return CONVERSIONS[kind, want][0](record)
