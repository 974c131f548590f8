"""Rows by words: `ascent show algorithms --like "entropy bonus"`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from ascent.algorithms import Row

# Where a word is found says how much the row is about it.
WEIGHTS = {"name": 8, "title": 5, "cell": 4, "formula": 3, "paper": 3, "needs": 3, "numbers from": 1, "pitfall": 1}


class Found(NamedTuple):
    row: Row
    score: int
    where: tuple[str, ...]


def like(rows: Iterable[Row], text: str) -> list[Found]:
    """Rows in which every word occurs, best first; if there are none, those with the most of the words."""
    words = re.findall(r"[a-z0-9.+*@]+", text.lower().replace("_", " ").replace("-", " "))
    if not words:
        raise ValueError(f"--like {text!r} holds no word to look for; give some, as in --like 'entropy bonus'")
    found = [_judged(row, words) for row in rows]
    most = max((len(hits) for _, hits in found), default=0)
    kept = [(row, hits) for row, hits in found if hits and len(hits) == most]
    ranked = [Found(row, sum(WEIGHTS[place] for place in hits.values()), tuple(hits.values())) for row, hits in kept]
    return sorted(ranked, key=lambda each: (-each.score, each.row.name))


def _judged(row: Row, words: list[str]) -> tuple[Row, dict[str, str]]:
    """For each word that occurs, the most telling place it occurs in."""
    texts = _texts(row)
    hits: dict[str, str] = {}
    for word in words:
        places = [place for place, text in texts if _starts(word, text)]
        if places:
            hits[word] = max(places, key=WEIGHTS.__getitem__)
    return row, hits


def _starts(word: str, text: str) -> bool:
    """At the start of a word: `norm` finds normalised, `po` does not find every algorithm there is."""
    plain = text.lower().replace("_", " ").replace("-", " ")
    return re.search(rf"(?<![a-z0-9]){re.escape(word)}", plain) is not None


def _texts(row: Row) -> list[tuple[str, str]]:
    found = [("name", row.name), ("title", row.title), ("formula", row.formula), ("paper", row.paper)]
    found += [("needs", " ".join(row.needs)), ("numbers from", row.origin)]
    found += [("pitfall", pitfall) for pitfall in row.pitfalls]
    return found + [("cell", f"{slot} {cell.name} {cell.summary}") for slot, cell in row.cells()]
