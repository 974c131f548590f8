"""Paragraphs first, characters last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascent.data.truncate import Truncation, fit, fit_messages
from ascent.records import Message


def at_most(length: int):
    return lambda text: len(text) <= length


def test_worked_cuts() -> None:
    text = "one two\n\nthree\nfour five"
    assert fit(text, at_most(100)) == Truncation(text, 0, 0)
    assert fit(text, at_most(22)) == Truncation("one two\n\nthree", 1, 0)
    assert fit(text, at_most(13)) == Truncation("one two", 2, 0)
    assert fit(text, at_most(4)) == Truncation("one ", 2, 3)
    assert fit("\n\nlong first\nx", at_most(10)) == Truncation("long first", 1, 0)


def test_the_end_is_kept() -> None:
    text = "post one\npost two\n\nTL;DR:"
    assert fit(text, at_most(18), keep_end="\n\nTL;DR:").text == "post one\n\nTL;DR:"
    assert fit(text, at_most(12), keep_end="\n\nTL;DR:").text == "post\n\nTL;DR:"
    with pytest.raises(ValueError, match="keep_end='x'"):
        fit(text, at_most(3), keep_end="x")


def test_nothing_fits() -> None:
    with pytest.raises(ValueError, match="not even one character"):
        fit("abc", at_most(0))


paragraphs = st.lists(
    st.text("ab c", min_size=1, max_size=8).filter(str.strip), min_size=1, max_size=6
)


@given(paragraphs, st.integers(1, 40))
def test_what_is_left_fits_and_is_as_long_as_whole_paragraphs_allow(
    parts: list[str], limit: int
) -> None:
    text = "\n".join(parts)
    cut = fit(text, at_most(limit))
    assert len(cut.text) <= limit
    assert text.startswith(cut.text)
    whole = ["\n".join(parts[:count]) for count in range(len(parts), 0, -1)]
    fitting = [each for each in whole if len(each) <= limit]
    assert cut.text == (fitting[0] if fitting else text[:limit])
    assert (cut.characters > 0) == (not fitting)


def test_the_last_user_message_is_cut() -> None:
    messages = (
        Message("system", "sys\nsys"),
        Message("user", "a\nb"),
        Message("assistant", "c"),
        Message("user", "d\ne"),
    )
    cut, lost = fit_messages(messages, lambda m: sum(len(each.content) for each in m) <= 12)
    assert cut == (*messages[:3], Message("user", "d"))
    assert lost.paragraphs == 1
    with pytest.raises(ValueError, match="without a user message"):
        fit_messages((Message("system", "x"),), lambda m: False)
