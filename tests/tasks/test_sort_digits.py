"""Sorting digits: worked answers."""

from __future__ import annotations

import pytest

from ascent.tasks.keyed_random import KeyedRandom
from ascent.tasks.sort_digits import draw_digits, parts


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
def test_partial_credit(text: str, correct: float, shape: float, digits: float, places: float) -> None:
    assert parts("1 3 7", text) == pytest.approx(
        {"correct": correct, "format": shape, "digits": digits, "places": places}
    )
