"""Where steps end: one rule for what a process reward model learns from and for what it judges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascent.data.errors import RowError
from ascent.data.steps import drop_blank_steps, join_steps, step_ends


@pytest.mark.parametrize(
    ("text", "separator", "ends"),
    [
        ("3\n11\n13", "\n", (2, 5, 8)),
        ("3", "\n", (2,)),  # no separator: the answer is one step
        ("3\n", "\n", (3,)),  # the last step ends with the answer, not with a separator before it
        ("\n3\n\n \n11\n\n", "\n", (3, 11)),  # blank lines are no steps
        ("", "\n", ()),
        (" \n ", "\n", ()),
        ("a\n\nb\nc\n\nd", "\n\n", (3, 8, 10)),
        ("3 11", " ", (2, 5)),
        ("x → y → z", " → ", (4, 8, 10)),
    ],
)
def test_ends_by_hand(text: str, separator: str, ends: tuple[int, ...]) -> None:
    assert step_ends(text, separator) == ends


@given(st.text("ab \n", max_size=12), st.sampled_from(["\n", " ", "\n\n", "ab"]))
def test_every_end_but_the_last_lies_behind_a_separator(text: str, separator: str) -> None:
    ends = step_ends(text, separator)
    assert bool(ends) == any(piece.strip() for piece in text.split(separator))
    assert list(ends) == sorted(set(ends)) and ends[-1:] in ((), (len(text) + 1,))
    assert all(text[:end].endswith(separator) for end in ends[:-1])


@given(st.text("ab \n", max_size=14), st.sampled_from(["\n", " ", "\n\n", "ab", "aba"]))
def test_without_blanks_there_are_the_same_steps(text: str, separator: str) -> None:
    read = drop_blank_steps(text, separator)
    steps = [piece for piece in text.split(separator) if piece.strip()]
    assert [piece for piece in read.split(separator) if steps] == steps
    assert len(step_ends(read, separator)) == len(step_ends(text, separator)) == len(steps)
    assert drop_blank_steps(read, separator) == read


@given(
    st.lists(st.text("ab \n", min_size=1, max_size=4), min_size=1, max_size=4),
    st.sampled_from(["\n", "\n\n", " "]),
)
def test_what_may_be_learnt_from_is_split_as_it_was_judged(
    steps: list[str], separator: str
) -> None:
    try:
        text = join_steps(steps, separator)
    except RowError:
        return
    ends = step_ends(text, separator)
    assert [text[a:b] for a, b in zip((0, *ends), ends, strict=False)] == [
        *(step + separator for step in steps[:-1]),
        steps[-1],
    ]


@pytest.mark.parametrize(
    ("steps", "separator", "words"),
    [
        (["a", "b\nc"], "\n", r"joined by '\\n', and step 1 contains it.* data\.step_separator"),
        (["a\n", "b"], "\n\n", r"joined by '\\n\\n', and two steps form it together"),
        (["a", " ", "b"], "\n", "step 1 has no text"),
        ([""], "\n", "step 0 has no text"),
    ],
)
def test_steps_that_would_be_split_otherwise_are_refused(
    steps: list[str], separator: str, words: str
) -> None:
    with pytest.raises(RowError, match=words):
        join_steps(steps, separator)
