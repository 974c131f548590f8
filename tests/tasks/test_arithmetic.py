"""Arithmetic: worked answers."""

from __future__ import annotations

import pytest

from ascent.tasks.arithmetic import draw, parts
from ascent.tasks.keyed_random import KeyedRandom


def test_answers_are_right() -> None:
    for index in range(300):
        problem = draw(KeyedRandom("sum", index))
        assert eval(problem.question.removesuffix("=")) == int(problem.answer)


def test_commuted_problems_share_a_key() -> None:
    keys = {}
    for index in range(3000):
        problem = draw(KeyedRandom("key", index))
        a, sign, b = problem.question.removesuffix(" =").split(" ")
        keys[a, sign, b] = problem.key
    for (a, sign, b), key in keys.items():
        if (b, sign, a) in keys and a != b:
            assert (keys[b, sign, a] == key) == (sign != "-")


@pytest.mark.parametrize(
    ("text", "correct", "shape", "digits"),
    [
        ("-12", 1, 1, 1),
        (" -12 ", 1, 1, 1),
        ("12", 0, 1, 2 / 3),
        ("-13", 0, 1, 2 / 3),
        ("-012", 0, 0, 0),
        ("12-", 0, 0, 0),
        ("-112", 0, 1, 2 / 4),
        ("", 0, 0, 0),
    ],
)
def test_partial_credit(text: str, correct: float, shape: float, digits: float) -> None:
    assert parts("-12", text) == pytest.approx(
        {"correct": correct, "format": shape, "digits": digits}
    )
