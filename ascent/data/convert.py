"""One kind of record from another, where that loses no meaning: stated here, nowhere implied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

from ascent.data.schemas import SCHEMAS, Record, Schema, Want
from ascent.records import Example, Pair, Ranking, UnpairedExample


def _pairs_of(record: Ranking) -> list[Record]:
    """Every pair of a ranking, K (K - 1) / 2 of them."""
    answers = record.answers
    return [
        Pair(record.prompt, answers[won], answers[lost])
        for won in range(len(answers))
        for lost in range(won + 1, len(answers))
    ]


# (from, to): the function, and what it does in words.
CONVERSIONS: dict[tuple[Want, Want], tuple[Callable[[Any], list[Record]], str]] = {
    ("pairs", "rankings"): (lambda r: [Ranking(r.prompt, (r.chosen, r.rejected))], "each pair is a ranking of two"),
    ("rankings", "pairs"): (_pairs_of, "each ranking becomes all of its pairs"),
    ("pairs", "unpaired"): (
        lambda r: [UnpairedExample(r.prompt, r.chosen, True), UnpairedExample(r.prompt, r.rejected, False)],
        "chosen answers get a thumb up, rejected ones a thumb down",
    ),
    ("pairs", "examples"): (lambda r: [Example(r.prompt.id, (*r.prompt.messages, *r.chosen))], "chosen answers only"),
    ("rankings", "examples"): (
        lambda r: [Example(r.prompt.id, (*r.prompt.messages, *r.answers[0]))],
        "the best answer of each ranking only",
    ),
    ("pairs", "prompts"): (lambda r: [r.prompt], "answers are not used"),
    ("rankings", "prompts"): (lambda r: [r.prompt], "answers are not used"),
    ("unpaired", "prompts"): (lambda r: [r.prompt], "answers are not used"),
    ("steps", "prompts"): (lambda r: [r.prompt], "answers are not used"),
}


def detect_schema(row: dict[str, Any], want: Want | None = None, layouts: Sequence[Schema] = SCHEMAS) -> Schema:
    """The layout of a file from one row of it; `want` decides where columns can be read in two ways."""
    if want is not None and want not in get_args(Want):
        raise ValueError(f"want={want!r}, but it must be one of {', '.join(get_args(Want))}")
    fitting = [layout for layout in layouts if layout.fits(row)]
    for layout in fitting:
        if want is None or layout.kind == want:
            return layout
    for layout in fitting:
        if (layout.kind, want) in CONVERSIONS:
            return layout
    columns = ", ".join(sorted(name for name, value in row.items() if value is not None)) or "none"
    wanted = dict.fromkeys(f"{layout.kind}: {layout.name}" for layout in layouts if want in (None, layout.kind))
    known = "; ".join(wanted)
    if fitting:
        raise ValueError(
            f"columns {columns}: this is {fitting[0].kind} ({fitting[0].name}), which cannot be used as {want}; give "
            f"{known} (docs/data.md), or choose an algorithm that learns from {fitting[0].kind}"
        )
    raise ValueError(f"columns {columns} fit no known layout; rename them to one of: {known} (docs/data.md)")


def convert(record: Record, kind: Want, want: Want | None) -> list[Record]:
    if want is None or kind == want:
        return [record]
    return CONVERSIONS[kind, want][0](record)
