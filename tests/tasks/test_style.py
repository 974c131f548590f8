"""Style: both orders are correct, one is preferred."""

from __future__ import annotations

import pytest

from ascent.tasks.keyed_random import KeyedRandom
from ascent.tasks.style import CONTRARY, draw, parts


def test_digits_are_distinct_so_that_the_two_styles_differ() -> None:
    for index in range(300):
        digits = draw(KeyedRandom("style", index)).answer.split(" ")
        assert len(set(digits)) == len(digits) >= 3


@pytest.mark.parametrize(
    ("text", "correct", "digits", "ascending"),
    [
        ("1 3 7", 1, 1, 1),
        ("7 3 1", 1, 1, 0),
        ("3 1 7", 0, 1, 0),
        ("1 3", 0, 2 / 3, 0),
        ("", 0, 0, 0),
    ],
)
def test_scores(text: str, correct: float, digits: float, ascending: float) -> None:
    assert parts("1 3 7", text) == pytest.approx(
        {"correct": correct, "digits": digits, "ascending": ascending}
    )


def test_contrary_wants_what_most_demonstrations_do_not_show() -> None:
    assert CONTRARY.parts("7 5 3", "7 5 3") == {"correct": 1.0, "listed": 1.0, "digits": 1.0}
    assert CONTRARY.parts("7 5 3", "3 5 7") == {"correct": 0.0, "listed": 1.0, "digits": 1.0}
    assert CONTRARY.parts("7 5 3", "5 3 7")["listed"] == 0.0
    shown = CONTRARY.demonstrations("train", 1000, seed=0)
    wanted = [
        CONTRARY.verify(prompt, example.messages[-1].content)["correct"]
        for prompt, example in zip(CONTRARY.prompts("train", 1000, seed=0), shown, strict=True)
    ]
    assert 0.25 < sum(wanted) / 1000 < 0.35
