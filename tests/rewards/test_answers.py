"""How answers are read: numbers exactly, with what stands around them."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.rewards import answers
from ascent.rewards.answers import LONGEST, Expression, Matrix, Named, Number, Several, Union, Words, read, read_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("72", 72), ("-3.50", Fraction(-7, 2)), ("1,234,567.5", Fraction(2469135, 2)), (".5", Fraction(1, 2))],
        *[(r"\frac{3}{4}", Fraction(3, 4)), (r"\frac34", Fraction(3, 4)), ("3/4", Fraction(3, 4))],
        *[
            (r"2\frac{1}{3}", Fraction(7, 3)),
            ("2 1/3", Fraction(7, 3)),
            ("6e3", 6000),
            (r"1.5\times10^{-2}", Fraction(3, 200)),
        ],
        *[("12,34", None), ("1,2", None), ("x", None), ("1/0", None), ("1e999999999", None), ("4 2", None), ("", None)],
    ],
)
def test_numbers(text, value):
    found = read_number(text)
    assert (found.value if found else None) == value


def test_what_stands_around_a_number():
    assert read("\\$1,000") == Number(Fraction(1000), True, unit="dollars")
    assert read(r"12.5\%") == Number(Fraction(25, 2), True, percent=True)
    assert read(r"5\text{ cm}^2") == read("5 square centimeters") == Number(Fraction(5), True, unit="centimeters^2")
    assert read(r"30^\circ") == Number(Fraction(30), True, unit="degrees")


def test_shapes():
    assert isinstance(read(r"\left[1, \infty\right)"), Several)
    assert isinstance(read(r"(-1,0) \cup (0,1)"), Union)
    assert isinstance(read(r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"), Matrix)
    assert read("x > 2") == Named("x", Several("()", (Number(Fraction(2), True), Expression(r"\infty"))))
    assert read("east") == Words("east") and read("(C)") == Words("C")
    assert read("2x+1") == Expression("2x+1")


@pytest.mark.parametrize("text", ["", " ", "?", "...", "{", r"\frac{1}{", "$$", r"\text{}", "()"])
def test_what_is_no_answer(text):
    assert read(text) is None


def test_longer_than_any_answer_is_none():
    assert read("9" * LONGEST) == Number(Fraction(10**LONGEST - 1), True)
    assert read("9" * (LONGEST + 1)) is None and read_number("9" * (LONGEST + 1)) is None
    assert read("½" * LONGEST) is None  # which is eleven times as long in one spelling
    assert read("1," * 5000) is None and read("(" * 5000) is None


def test_plus_or_minus_is_read_both_ways_a_few_times():
    four = read(r"1 \pm 2 \pm 3 \pm 4 \pm 5")
    assert isinstance(four, Several) and all(isinstance(each, Several) for each in four.items)
    assert isinstance(read(r"1 \pm 2 \pm 3 \pm 4 \pm 5 \pm 6"), Expression)


def unwrapped(text):
    """One pair at a time, each looked for by counting brackets from the start."""
    if len(text) < 2 or text[0] + text[-1] not in ("{}", "()"):
        return text
    depths = [0]
    for letter in text:
        depths.append(depths[-1] + (letter in "([{⦃") - (letter in ")]}⦄"))
    if 0 in depths[1:-1] or depths[-1] != 0:
        return text
    if text[0] == "(" and any(letter == "," and depths[place] == 1 for place, letter in enumerate(text)):
        return text
    return unwrapped(text[1:-1].strip())


@settings(max_examples=1000)
@given(st.lists(st.sampled_from([*"(){}[]⦃⦄, 1x+", "((", "))", "{{", "}}"]), max_size=16).map("".join))
def test_brackets_around_all_of_it_as_by_counting(text):
    assert answers._unwrapped(text.strip()) == unwrapped(text.strip())
    assert answers._unwrapped(f"({{ ({text}) }})") == unwrapped(f"({{ ({text}) }})")
