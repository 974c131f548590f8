"""ROUGE-L (Lin 2004): the longest common subsequence of words, as an F-score with precision and recall equal.

Words are runs of letters and digits in lower case, of any script, without stemming.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def rouge_l(reference: str, text: str) -> float:
    """2 LCS / (both lengths). "the cat sat" against "the cat ate": 2 words in common of 3 and 3, so 2/3."""
    want, got = words(reference), words(text)
    if not want:
        raise ValueError(
            f"the reference {reference[:60]!r} has no words; ROUGE-L compares with a text"
        )
    return 2 * common(want, got) / (len(want) + len(got))


def common(first: Sequence[str], second: Sequence[str]) -> int:
    """The length of the longest common subsequence, one row of the usual table at a time in the bits of an integer.

    Bit i of `row` is 0 where the table grows from column i to i + 1 (Hyyrö 2004). Time is linear in `second`.
    """
    places: dict[str, int] = {}
    for place, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << place
    whole = (1 << len(first)) - 1
    row = whole
    for word in filter(places.__contains__, second):
        hits = row & places[word]
        row = ((row + hits) | (row - hits)) & whole
    return len(first) - row.bit_count()
