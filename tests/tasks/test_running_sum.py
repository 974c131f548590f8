"""Running sums: every total is a step, rewarded at the token that ends it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascent.tasks.keyed_random import KeyedRandom
from ascent.tasks.running_sum import RUNNING_SUM, draw, parts, steps


def test_the_totals_are_right() -> None:
    for index in range(200):
        problem = draw(KeyedRandom("sum", index))
        numbers = [
            int(number)
            for number in problem.question.removeprefix("add ").removesuffix(" =").split(" ")
        ]
        assert problem.answer.split(" ") == [
            str(sum(numbers[: n + 1])) for n in range(len(numbers))
        ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3 11 13", [(1, 1), (4, 1), (7, 1)]),
        ("3 12 13", [(1, 1), (4, 0), (7, 1)]),
        ("3 11", [(1, 1), (4, 1), (5, 0)]),
        ("3 11 13 13", [(1, 1), (4, 1), (7, 1), (10, 0)]),
        (" 3  x", [(2, 1), (5, 0), (6, 0)]),
        ("", [(1, 0)]),
        ("  ", [(3, 0)]),
    ],
)
def test_steps_by_hand(text: str, found: list[tuple[int, float]]) -> None:
    assert list(steps("3 11 13", text)) == found


@pytest.mark.parametrize(
    ("text", "correct", "total", "share"),
    [
        ("3 11 13", 1, 1, 1),
        ("3 12 13", 0, 1, 2 / 3),
        ("3 11", 0, 0, 2 / 3),
        ("13", 0, 1, 0),
        ("", 0, 0, 0),
    ],
)
def test_parts_by_hand(text: str, correct: float, total: float, share: float) -> None:
    assert parts("3 11 13", text) == pytest.approx(
        {"correct": correct, "total": total, "steps": share}
    )


@given(st.text(max_size=20) | st.text("0123456789 ", max_size=20))
def test_every_text_has_a_step_and_one_behind_it_where_totals_are_missing(text: str) -> None:
    found = steps("3 11 13", text)
    ends = [each.end for each in found]
    assert found and ends == sorted(set(ends))
    assert ends[-1] == len(text) + 1 if len(text.split()) < 3 else ends[-1] <= len(text)


def test_judged_steps_join_to_the_answer_and_an_end_too_early_makes_the_last_one_wrong() -> None:
    found = RUNNING_SUM.stepwise("train", 64)
    short = 0
    for each in found:
        want, text = str(each.prompt.answer).split(" "), " ".join(each.steps)
        right = [
            float(place < len(want) and step == want[place])
            for place, step in enumerate(each.steps)
        ]
        if len(each.steps) < len(want):
            short += 1
            assert each.right == (*right[:-1], 0.0), text
        else:
            assert each.right == tuple(right), text
    assert 8 <= short <= 24  # a quarter of all attempts stop early
