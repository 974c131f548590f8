"""Units behind numbers and behind expressions; letters without \\text are variables."""

import pytest

from ascent.rewards.answers import Expression, Text, parse_answer
from ascent.rewards.equality import compare, no_symbolic
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


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        *[
            ("3", "3 fourths"),
            ("3", "3 pi"),
            ("3", r"3 \text{ pi}"),
            ("2 pi", "2"),
            ("5", "5 million"),
            ("5", r"\$5 million"),
        ],
        *[
            ("5", r"5 \text{ million dollars}"),
            ("5", "5 squared"),
            ("2", "2 sin x"),
            ("2", "2 sqrt"),
            ("5", "5 factorial"),
        ],
        *[
            ("101", "101 in base two"),
            ("3", "3 plus x"),
            ("2", "2 tenths of a mile"),
            ("5 million", "5"),
            ("3", "3 and a half"),
        ],
        *[("3", r"3 \mathrm{i}"), ("3", r"3\text{e}")],
    ],
)
def test_words_that_make_another_number(gold, answer):
    def differ(gold_latex, answer_latex):
        return gold_latex == answer_latex

    assert compare(gold, answer, differ)[0] is False and compare(answer, answer, differ)[0] is True


@pytest.mark.parametrize(
    "unit", ["apples", "times", "quarters", "seconds", "dozen eggs", "third graders", "points", "in"]
)
def test_words_that_are_counted(unit):
    assert compare("5", f"5 {unit}", no_symbolic)[0] is True
    assert compare("5", rf"5 \text{{ {unit}}}", no_symbolic)[0] is True


def test_pi_has_one_spelling():
    assert parse_answer("2 pi") == parse_answer(r"2 \pi") and parse_answer("pie") == Text("pie")
