"""How answers are read: numbers exactly, with what stands around them."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.rewards import answers
from ascent.rewards.answers import (
    MAX_CHARACTERS,
    Assignment,
    Expression,
    ItemList,
    Matrix,
    Number,
    Text,
    Union,
    parse_answer,
    parse_number,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[
            ("72", 72),
            ("-3.50", Fraction(-7, 2)),
            ("1,234,567.5", Fraction(2469135, 2)),
            (".5", Fraction(1, 2)),
        ],
        *[(r"\frac{3}{4}", Fraction(3, 4)), (r"\frac34", Fraction(3, 4)), ("3/4", Fraction(3, 4))],
        *[
            (r"2\frac{1}{3}", Fraction(7, 3)),
            ("2 1/3", Fraction(7, 3)),
            ("6e3", 6000),
            (r"1.5\times10^{-2}", Fraction(3, 200)),
        ],
        *[
            ("12,34", None),
            ("1,2", None),
            ("x", None),
            ("1/0", None),
            ("1e999999999", None),
            ("4 2", None),
            ("", None),
        ],
    ],
)
def test_numbers(text, value):
    items = parse_number(text)
    assert (items.value if items else None) == value


def test_what_stands_around_a_number():
    assert parse_answer("\\$1,000") == Number(Fraction(1000), True, unit="dollars")
    assert parse_answer(r"12.5\%") == Number(Fraction(25, 2), True, percent=True)
    assert (
        parse_answer(r"5\text{ cm}^2")
        == parse_answer("5 square centimeters")
        == Number(Fraction(5), True, unit="centimeters^2")
    )
    assert parse_answer(r"30^\circ") == Number(Fraction(30), True, unit="degrees")


@pytest.mark.parametrize(
    ("text", "braced"),
    [
        *[
            (r"\frac\pi2", r"\frac{\pi}{2}"),
            (r"\dfrac1\pi+x", r"\frac{1}{\pi}+x"),
            (r"\frac\pi{2x}", r"\frac{\pi}{2x}"),
        ],
        *[(r"\frac{\frac\pi2}3", r"\frac{\frac{\pi}{2}}{3}"), (r"\frac1{23}+x", r"\frac{1}{23}+x")],
        *[
            (r"\sqrt\pi", r"\sqrt{\pi}"),
            (r"\sqrt[3]x", r"\sqrt[3]{x}"),
            (r"x^\frac12", r"x^{\frac{1}{2}}"),
        ],
        *[(r"\sqrt{2", r"\sqrt{2"), (r"\sqrt-x", r"\sqrt-x"), (r"\frac", r"\frac")],
    ],
)
def test_arguments_without_braces(text, braced):
    assert answers.normalize(text) == braced


def test_shapes():
    assert isinstance(parse_answer(r"\left[1, \infty\right)"), ItemList)
    assert isinstance(parse_answer(r"(-1,0) \cup (0,1)"), Union)
    assert isinstance(parse_answer(r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"), Matrix)
    assert parse_answer("x > 2") == Assignment(
        "x", ItemList("()", (Number(Fraction(2), True), Expression(r"\infty")))
    )
    assert parse_answer("east") == Text("east") and parse_answer("(C)") == Text("C")
    assert parse_answer("2x+1") == Expression("2x+1")


@pytest.mark.parametrize("text", ["", " ", "?", "...", "{", r"\frac{1}{", "$$", r"\text{}", "()"])
def test_what_is_no_answer(text):
    assert parse_answer(text) is None


def test_longer_than_any_answer_is_none():
    assert parse_answer("9" * MAX_CHARACTERS) == Number(Fraction(10**MAX_CHARACTERS - 1), True)
    assert (
        parse_answer("9" * (MAX_CHARACTERS + 1)) is None
        and parse_number("9" * (MAX_CHARACTERS + 1)) is None
    )
    assert (
        parse_answer("½" * MAX_CHARACTERS) is None
    )  # which is eleven times as long in one spelling
    assert parse_answer("1," * 5000) is None and parse_answer("(" * 5000) is None


def test_plus_or_minus_is_read_both_ways_a_few_times():
    four = parse_answer(r"1 \pm 2 \pm 3 \pm 4 \pm 5")
    assert isinstance(four, ItemList) and all(isinstance(each, ItemList) for each in four.items)
    assert isinstance(parse_answer(r"1 \pm 2 \pm 3 \pm 4 \pm 5 \pm 6"), Expression)


def unwrapped(text):
    """One pair at a time, each looked for by counting brackets from the start."""
    if len(text) < 2 or text[0] + text[-1] not in ("{}", "()"):
        return text
    depths = [0]
    for character in text:
        depths.append(depths[-1] + (character in "([{⦃") - (character in ")]}⦄"))
    if 0 in depths[1:-1] or depths[-1] != 0:
        return text
    if text[0] == "(" and any(
        character == "," and depths[index] == 1 for index, character in enumerate(text)
    ):
        return text
    return unwrapped(text[1:-1].strip())


@settings(max_examples=1000)
@given(
    st.lists(st.sampled_from([*"(){}[]⦃⦄, 1x+", "((", "))", "{{", "}}"]), max_size=16).map("".join)
)
def test_brackets_around_all_of_it_as_by_counting(text):
    assert answers._strip_brackets(text.strip()) == unwrapped(text.strip())
    assert answers._strip_brackets(f"({{ ({text}) }})") == unwrapped(f"({{ ({text}) }})")
