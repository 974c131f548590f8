"""Countdown: every problem can be solved, values are exact, any right way counts."""

from __future__ import annotations

import ast
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascent.tasks.countdown import COUNTDOWN, draw, parse, parts
from ascent.tasks.keyed_random import KeyedRandom


def value(text: str) -> Fraction | None:
    """By Python's own grammar, with exact division."""
    exact = ast.parse(text, mode="eval")

    def walk(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant):
            return Fraction(node.value)  # type: ignore[arg-type]
        assert isinstance(node, ast.BinOp)
        a, b = walk(node.left), walk(node.right)
        signs = {
            ast.Add: lambda: a + b,
            ast.Sub: lambda: a - b,
            ast.Mult: lambda: a * b,
            ast.Div: lambda: a / b,
        }
        return signs[type(node.op)]()  # type: ignore[index]

    try:
        return walk(exact.body)
    except ZeroDivisionError:
        return None


def test_the_reference_solves_its_problem() -> None:
    for index in range(300):
        problem = draw(KeyedRandom("solve", index))
        target, _, numbers = (
            problem.question.removeprefix("make ").removesuffix(" =").partition(" from ")
        )
        found = parse(problem.answer)
        assert value(problem.answer) == int(target)
        assert found is not None and sorted(found.numbers) == sorted(numbers.split(" "))
        assert parts(problem.answer, problem.answer) == {
            "correct": 1,
            "format": 1,
            "numbers": 1,
            "near": 1,
        }


def test_the_order_of_numbers_does_not_make_another_problem() -> None:
    keys = {draw(KeyedRandom("key", index)).key for index in range(200)}
    for key in keys:
        numbers = key.partition(" from ")[2].split(" ")
        assert numbers == sorted(numbers, key=int)


SIGNS = st.sampled_from("+-*/")
SUMS = st.recursive(
    st.integers(0, 12).map(str),
    lambda inner: (
        st.tuples(inner, SIGNS, inner).map(" ".join)
        | st.tuples(inner, SIGNS, inner).map(lambda each: f"({''.join(each)})")
    ),
    max_leaves=6,
)


@given(SUMS)
def test_reading_agrees_with_pythons_grammar(text: str) -> None:
    found = parse(text)
    assert found is not None
    assert found.value == value(text)


@pytest.mark.parametrize(
    ("text", "correct", "shape", "numbers", "near"),
    [
        ("2 * (3 + 4)", 1, 1, 1, 1),
        (" (4+3)*2 ", 1, 1, 1, 1),
        ("2 * 3 + 4", 0, 1, 1, 1 / 5),
        ("2 * 4 + 3", 0, 1, 1, 1 / 4),
        ("2 * 7", 0, 1, 1 / 3, 0),
        ("14", 0, 1, 0, 0),
        ("2 + 3 + 4 + 5", 0, 1, 3 / 4, 0),
        ("7 / 2 * 4", 0, 1, 2 / 3, 0),
        ("2 / (3 - 4)", 0, 1, 1, 1 / 17),
        ("2 / (3 - 3)", 0, 1, 2 / 3, 0),
        ("2 * (3 + 4) = 14", 0, 0, 0, 0),
        ("2 * (3 + 4", 0, 0, 0, 0),
        ("2 3 4", 0, 0, 0, 0),
        ("-2 * (3 + 4)", 0, 0, 0, 0),
        ("2 ** 3 + 4", 0, 0, 0, 0),
        ("2 / 0 +", 0, 0, 0, 0),
        ("02 * (3 + 4)", 0, 1, 2 / 3, 0),
        ("(" * 50 + "2" + ")" * 50, 0, 0, 0, 0),
        ("２ * (3 + 4)", 0, 0, 0, 0),
        ("", 0, 0, 0, 0),
    ],
)
def test_partial_credit(
    text: str, correct: float, shape: float, numbers: float, near: float
) -> None:
    assert parts("2 * (3 + 4)", text) == pytest.approx(
        {"correct": correct, "format": shape, "numbers": numbers, "near": near}
    )


def test_neither_the_target_itself_nor_a_number_of_choice_is_near() -> None:
    """What needs no arithmetic at all would be worth more than an honest try with the numbers given."""
    for prompt in COUNTDOWN.prompts("train", 200):
        made, _, given_numbers = prompt.messages[0].content.removesuffix(" =").partition(" from ")
        target, numbers = int(made.removeprefix("make ")), given_numbers.split(" ")
        added = " + ".join(numbers)
        off = target - sum(map(int, numbers))
        if off:
            mended = f"{added} {'+' if off > 0 else '-'} {abs(off)}"
            honest = COUNTDOWN.true_utility(prompt, added)
            assert (
                max(COUNTDOWN.true_utility(prompt, text) for text in (str(target), mended)) < honest
            )


def test_attempts_are_judged_as_python_would() -> None:
    for ranking in COUNTDOWN.rankings("train", 200):
        given_numbers = (
            ranking.prompt.messages[0].content.partition(" from ")[2].removesuffix(" =").split(" ")
        )
        for (answer,) in ranking.answers:
            found = parse(answer.content)
            assert found is not None
            right = sorted(found.numbers) == sorted(given_numbers)
            right &= value(answer.content) == value(str(ranking.prompt.answer))
            assert COUNTDOWN.verify(ranking.prompt, answer.content)["correct"] == right
