"""Units behind numbers and behind expressions; letters without \\text are variables."""

import pytest

from ascent.rewards.answers import Expression, parse_answer
from ascent.rewards.units import split_expression_unit, split_unit


def test_worked_example():
    assert split_unit("5 ⟨cm⟩^2") == split_unit("5 square centimeters") == ("5", "centimeters^2")


@pytest.mark.parametrize(
    ("text", "latex", "unit"),
    [
        *[(r"36\pi \text{ cm}^2", r"36\pi", "centimeters^2"), (r"36\pi\mathrm{cm}^{3}", r"36\pi", "centimeters^3")],
        *[(r"2\sqrt{3} \text{ square units}", r"2\sqrt{3}", "units^2"), (r"2\sqrt{3} km", r"2\sqrt{3}", "kilometers")],
        *[(r"2\sqrt{3} sq cm", r"2\sqrt{3}", "centimeters^2"), (r"x^2 \text{ apples}", "x^2", "apples")],
        *[(r"\pi r^2 h", r"\pi r^2 h", ""), ("x^2 + 3t", "x^2 + 3t", ""), (r"2\sqrt{3} m", r"2\sqrt{3} m", "")],
        *[(r"2\pi \text{ or so}", r"2\pi  or so", ""), (r"x+\text{cm}", "x+  cm", "")],
    ],
)
def test_expressions(text, latex, unit):
    assert parse_answer(text) == Expression(latex, unit)


def test_nothing_but_a_unit_is_no_expression_with_one():
    assert split_expression_unit("⟨cm⟩") == ("⟨cm⟩", "") and split_expression_unit("km") == ("km", "")
