"""BM25 search over a local corpus; ties in the order of the file.

The corpus is a text file with one passage per line, or a .jsonl file with `text` and optionally `title`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path

K1, B = 1.5, 0.75  # term saturation and length normalization
_WORD = re.compile(r"\w+")


class Search:
    """Finds the best `results` passages for a query."""

    def __init__(self, corpus: str, *, results: int = 3) -> None:
        if results < 1:
            raise ValueError(f"search: results={results}, but at least 1 passage must be shown")
        self.passages, self.results = _read(corpus), results
        self._counts = [Counter(_words(passage)) for passage in self.passages]
        self._lengths = [sum(count.values()) for count in self._counts]
        self._mean = sum(self._lengths) / len(self._lengths)
        self._where: dict[str, list[int]] = {}
        for place, count in enumerate(self._counts):
            for word in count:
                self._where.setdefault(word, []).append(place)

    def __call__(self, query: str) -> str:
        """The best passages, numbered, one per line, or "nothing found"."""
        scores: dict[int, float] = {}
        for word in sorted(set(_words(query))):
            places = self._where.get(word, [])
            rarity = math.log(1 + (len(self.passages) - len(places) + 0.5) / (len(places) + 0.5))
            for place in places:
                times = self._counts[place][word]
                held = K1 * (1 - B + B * self._lengths[place] / self._mean)
                scores[place] = scores.get(place, 0.0) + rarity * times * (K1 + 1) / (times + held)
        best = sorted(scores, key=lambda place: (-scores[place], place))[: self.results]
        return (
            "\n".join(f"{n}. {self.passages[place]}" for n, place in enumerate(best, start=1))
            or "nothing found"
        )


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _read(corpus: str) -> list[str]:
    path = Path(corpus).expanduser()
    if not path.is_file():
        raise ValueError(f"search: corpus={corpus}: there is no such file")
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if path.suffix == ".jsonl":
        lines = [
            _passage(line, f"{path.name}:{number}") for number, line in enumerate(lines, start=1)
        ]
    if not any(_words(line) for line in lines):
        raise ValueError(f"search: corpus={corpus} holds no passage")
    return lines


def _passage(line: str, where: str) -> str:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"search: {where} is not JSON: {error}") from None
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise ValueError(
            f"search: {where} has no `text`; a passage is {{'text': ..., 'title': ...}}"
        )
    return f"{row['title']}: {row['text']}" if row.get("title") else row["text"]
