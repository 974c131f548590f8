"""Style: both orders are correct, one is preferred."""

from __future__ import annotations

import pytest

from ascent.tasks.noise import Noise
from ascent.tasks.style import draw, parts


def test_digits_are_distinct_so_that_the_two_styles_differ() -> None:
    for index in range(300):
        digits = draw(Noise("style", index)).answer.split(" ")
        assert len(set(digits)) == len(digits) >= 3


@pytest.mark.parametrize(
    ("text", "correct", "digits", "ascending"),
    [("1 3 7", 1, 1, 1), ("7 3 1", 1, 1, 0), ("3 1 7", 0, 1, 0), ("1 3", 0, 2 / 3, 0), ("", 0, 0, 0)],
)
def test_scores(text: str, correct: float, digits: float, ascending: float) -> None:
    assert parts("1 3 7", text) == pytest.approx({"correct": correct, "digits": digits, "ascending": ascending})
