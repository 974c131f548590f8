"""Sorting digits: worked answers."""

from __future__ import annotations

import pytest

from ascent.tasks.keyed_random import KeyedRandom
from ascent.tasks.sort_digits import SORT_LONG, SORT_UP_TO_FOUR, draw_digits, parts


def test_a_problem_is_the_digits_and_their_order() -> None:
    problem = draw_digits(3, 6)(KeyedRandom("one"))
    digits = problem.question.removeprefix("sort ").removesuffix(" =").split(" ")
    assert problem.answer == " ".join(sorted(digits))


@pytest.mark.parametrize(
    ("text", "correct", "shape", "digits", "places"),
    [
        ("1 3 7", 1, 1, 1, 1),
        (" 1 3 7\n", 1, 1, 1, 1),
        ("1 7 3", 0, 1, 1, 1 / 3),
        ("1 3", 0, 1, 2 / 3, 2 / 3),
        ("1 3 7 7", 0, 1, 3 / 4, 3 / 4),
        ("137", 0, 0, 0, 0),
        ("answer: 1 3 7", 0, 0, 1, 1),
        ("", 0, 0, 0, 0),
        ("１ 3 7", 0, 0, 2 / 3, 0),
    ],
)
def test_partial_credit(
    text: str, correct: float, shape: float, digits: float, places: float
) -> None:
    assert parts("1 3 7", text) == pytest.approx(
        {"correct": correct, "format": shape, "digits": digits, "places": places}
    )


def test_the_quick_start_demonstrates_lists_of_up_to_4_digits_and_practices_longer_ones() -> None:
    for prompt, example in zip(
        SORT_UP_TO_FOUR.prompts("train", 200),
        SORT_UP_TO_FOUR.demonstrations("train", 200),
        strict=True,
    ):
        text = example.messages[-1].content
        assert text == f" {prompt.answer}" and 2 <= len(text.split()) <= 4
        assert SORT_UP_TO_FOUR.verify(prompt, text)["correct"] == 1
    assert {len(str(prompt.answer).split()) for prompt in SORT_LONG.prompts("train", 200)} == {
        7,
        8,
        9,
        10,
    }
