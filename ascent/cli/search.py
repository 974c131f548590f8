"""Rows and cells by words: `ascent show algorithms --like "entropy bonus"`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from ascent.algorithms import Row
from ascent.cli.cell_text import Choice

# Where a word is found says how much the row or cell is about it.
WEIGHTS = {
    "name": 8,
    "title": 5,
    "what it does": 5,
    "cell": 4,
    "formula": 3,
    "paper": 3,
    "needs": 3,
    "numbers": 3,
    "numbers from": 1,
    "pitfall": 1,
}


class Match(NamedTuple):
    """A row or a cell, how well it fits, and the place of each word."""

    entry: Row | Choice
    score: int
    where: tuple[str, ...]


def find_matches(entries: Iterable[Row | Choice], text: str) -> list[Match]:
    """Entries in which every word occurs, rows first, then cells, each best first; if none, those with the most."""
    words = re.findall(r"[a-z0-9.+*@]+", text.lower().replace("_", " ").replace("-", " "))
    if not words:
        raise ValueError(
            f"--like {text!r} holds no word to look for; give some, as in --like 'entropy bonus'"
        )
    found = [(entry, _hits(entry, words)) for entry in entries]
    most = max((len(hits) for _, hits in found), default=0)
    kept = [(entry, hits) for entry, hits in found if hits and len(hits) == most]
    ranked = [
        Match(entry, sum(WEIGHTS[place] for place in hits.values()), tuple(hits.values()))
        for entry, hits in kept
    ]
    return sorted(
        ranked, key=lambda each: (isinstance(each.entry, Choice), -each.score, each.entry.name)
    )


def _hits(entry: Row | Choice, words: list[str]) -> dict[str, str]:
    """For each word that occurs, the most telling place it occurs in."""
    texts = _row_texts(entry) if isinstance(entry, Row) else _cell_texts(entry)
    hits: dict[str, str] = {}
    for word in words:
        places = [place for place, text in texts if _starts(word, text)]
        if places:
            hits[word] = max(places, key=WEIGHTS.__getitem__)
    return hits


def _starts(word: str, text: str) -> bool:
    """At the start of a word: `norm` finds normalized, `po` does not find every algorithm there is."""
    plain = text.lower().replace("_", " ").replace("-", " ")
    return re.search(rf"(?<![a-z0-9]){re.escape(word)}", plain) is not None


def _row_texts(row: Row) -> list[tuple[str, str]]:
    found = [
        ("name", row.name),
        ("title", row.title),
        ("formula", row.formula),
        ("paper", row.paper),
    ]
    found += [("needs", " ".join(row.needs)), ("numbers from", row.origin)]
    found += [("pitfall", pitfall) for pitfall in row.pitfalls]
    return found + [("cell", f"{slot} {cell.name} {cell.summary}") for slot, cell in row.cells()]


def _cell_texts(cell: Choice) -> list[tuple[str, str]]:
    return [
        ("name", f"{cell.slot} {cell.name}"),
        ("what it does", cell.summary),
        ("numbers", cell.numbers),
    ]
