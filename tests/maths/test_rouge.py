"""ROUGE-L by hand, and its subsequences against the textbook's table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascent.maths.rouge import common, rouge_l


@pytest.mark.parametrize(
    ("reference", "text", "expected"),
    [
        ("the cat sat", "the cat sat", 1),
        ("the cat sat", "The CAT, sat!", 1),
        ("the cat sat", "the cat ate", 2 / 3),
        # police the gunman / police kill the gunman: 3 in common, 4 and 4 words (Lin 2004, section 3.1)
        ("police killed the gunman", "police kill the gunman", 3 / 4),
        ("police killed the gunman", "the gunman kill police", 2 / 4),
        ("a b c d", "a c", 2 * 2 / 6),
        ("a b", "b a", 1 / 2),
        ("the cat sat", "", 0),
        ("naïve 東京", "東京", 2 / 3),
        ("a_b", "a b", 1),
    ],
)
def test_by_hand(reference: str, text: str, expected: float) -> None:
    assert rouge_l(reference, text) == pytest.approx(expected)


def test_a_reference_without_words_is_refused() -> None:
    with pytest.raises(ValueError, match="has no words"):
        rouge_l("...", "a")


def table(first: list[str], second: list[str]) -> int:
    row = [0] * (len(second) + 1)
    for a in first:
        above = row[:]
        for place, b in enumerate(second):
            row[place + 1] = above[place] + 1 if a == b else max(above[place + 1], row[place])
    return row[-1]


WORDS = st.lists(st.sampled_from("abcd"), max_size=80)


@given(WORDS, WORDS)
def test_subsequences_as_in_the_table(first: list[str], second: list[str]) -> None:
    assert common(first, second) == table(first, second) == common(second, first)
