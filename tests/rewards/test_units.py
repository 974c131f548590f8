"""Units behind numbers and behind expressions; letters without \\text are variables."""

import pytest

from ascent.rewards.answers import Expression, Text, parse_answer
from ascent.rewards.checker import symbolic
from ascent.rewards.equality import compare, no_symbolic
from ascent.rewards.units import split_bare_unit, split_expression_unit, split_unit


def test_worked_example():
    assert split_unit("5 ⟨cm⟩^2") == split_unit("5 square centimeters") == ("5", "centimeters^2")
    assert split_unit("5 light years squared") == split_unit("5 square light years")


@pytest.mark.parametrize(
    ("text", "latex", "unit"),
    [
        *[
            (r"36\pi \text{ cm}^2", r"36\pi", "centimeters^2"),
            (r"36\pi\mathrm{cm}^{3}", r"36\pi", "centimeters^3"),
        ],
        *[
            (r"2\sqrt{3} \text{ square units}", r"2\sqrt{3}", "units^2"),
            (r"2\sqrt{3} km", r"2\sqrt{3}", "kilometers"),
        ],
        *[
            (r"2\sqrt{3} sq cm", r"2\sqrt{3}", "centimeters^2"),
            (r"x^2 \text{ apples}", "x^2", "apples"),
        ],
        *[
            (r"\pi r^2 h", r"\pi r^2 h", ""),
            ("x^2 + 3t", "x^2 + 3t", ""),
            (r"2\sqrt{3} m", r"2\sqrt{3} m", ""),
        ],
        *[(r"2\pi \text{ or so}", r"2\pi  or so", ""), (r"x+\text{cm}", "x+  cm", "")],
    ],
)
def test_expressions(text, latex, unit):
    assert parse_answer(text) == Expression(latex, unit)


def test_nothing_but_a_unit_is_no_expression_with_one():
    assert split_expression_unit("⟨cm⟩") == ("⟨cm⟩", "") and split_expression_unit("km") == (
        "km",
        "",
    )


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
        *[
            ("3", r"3 \mathrm{i}"),
            ("3", r"3\text{e}"),
            ("5", r"5\mathrm{e^2}"),
            ("5", r"5\mathrm{e^{2}}"),
        ],
        *[
            ("5", r"5\text{ squared}"),
            ("5", r"\text{5 million}"),
            ("5", r"5\text{ pi squared}"),
            ("5", "5 over n plus"),
        ],
        *[("$2.5 million", "2.5"), ("$2.5 million", "$2.6 million"), ("30", r"30^\circ + x")],
    ],
)
def test_words_that_make_another_number(gold, answer):
    def differ(gold_latex, answer_latex):
        return gold_latex == answer_latex

    assert compare(gold, answer, differ)[0] is False and compare(answer, answer, differ)[0] is True


@pytest.mark.parametrize(
    "unit",
    ["apples", "times", "quarters", "seconds", "dozen eggs", "third graders", "points", "in"],
)
def test_words_that_are_counted(unit):
    assert compare("5", f"5 {unit}", no_symbolic)[0] is True
    assert compare("5", rf"5 \text{{ {unit}}}", no_symbolic)[0] is True


@pytest.mark.parametrize(
    ("gold", "answers"),
    [
        (
            r"30^\circ",
            (
                r"30^\circ.",
                r"(30^\circ)",
                r"{30}^\circ",
                "30",
                r"x=30^{\circ}",
                r"\text{30 degrees}",
            ),
        ),
        ("30", (r"30^\circ.", r"(30^\circ)", r"{30}^\circ", "30°")),
        (
            r"30^\circ, 150^\circ",
            (
                r"30^\circ\text{ or }150^\circ",
                r"\{30^\circ,150^\circ\}",
                r"x=30^\circ, x=150^\circ",
            ),
        ),
        (r"22.5^\circ", (r"\frac{45}{2}^\circ", r"\left(\frac{45}{2}\right)^\circ")),
        (
            "36",
            (
                r"\text{36 apples}",
                r"\text{36 square meters}",
                r"36\text{ units squared}",
                "36 cm squared",
            ),
        ),
        (
            "36",
            ("36 meters per second squared", r"36\text{ meters cubed}", "36 dollars over budget"),
        ),
        (
            "36 cm^2",
            ("36 cm squared", r"36\,\mathrm{cm^2}", r"36\,\mathrm{cm^{2}}", r"\text{36 square cm}"),
        ),
        (r"3\%", (r"\text{3\%}",)),
        (r"125\textnormal{ miles}", ("125", "125 miles", r"125\textrm{ miles}")),
        ("3-4i", (r"3-4\mathrm{i}", r"3-4\,\text{i}")),
        (r"2\sqrt{3}i", (r"2\mathrm{i}\sqrt3",)),
        ("$2.5 million", ("$2.5 million", "2.5 million", r"\$2.5\text{ million}")),
        (r"\$2.5\text{ million}", ("2.5 million", r"2.5\text{ million}")),
        *[("$40 over budget", ("$40 over budget",)), ("€3 million", ("3 million",))],
        (
            r"9\pi\text{ liters}",
            (r"9\pi liters", r"\text{9\pi litres}", r"9\pi", r"9\pi\text{ liters}"),
        ),
        *[
            (r"9\pi\text{ apples}", (r"9\pi apples",)),
            (r"6\sqrt{2}\text{ m/s^2}", (r"6\sqrt{2} m/s^2",)),
        ],
        (
            r"36\pi\text{ cm}^2",
            (r"36\pi\,\mathrm{cm^2}", r"36\pi cm squared", r"36\pi\text{ centimetres squared}"),
        ),
        *[(r"9\pi", (r"9\pi litres", r"9\pi years")), ("12", (r"x \approx 12", r"V\approx12"))],
        *[("e", (r"e \approx 2.718",)), (r"\frac13", (r"\frac{1}{3} \approx 0.33",))],
    ],
)
def test_the_same_answer_in_other_words(gold, answers):
    assert [answer for answer in answers if not compare(gold, answer, symbolic)[0]] == []


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        *[
            (r"9\pi\text{ liters}", r"9\pi apples"),
            (r"9\pi\text{ cm}", r"9\pi cm^2"),
            (r"9\pi\text{ apples}", r"8\pi apples"),
        ],
        *[
            ("12", r"x \approx 13"),
            (r"x \approx 12", r"y \approx 12"),
            ("36 cm^2", r"36\mathrm{cm}"),
        ],
        *[
            (r"30^\circ, 150^\circ", r"30^\circ\text{ or }120^\circ"),
            ("3", "3-4i"),
            ("$2.5 million", "2500000 dollars over"),
        ],
    ],
)
def test_another_answer_in_these_words(gold, answer):
    assert compare(gold, answer, symbolic)[0] is False


def test_bare_words_are_units_where_the_other_answer_says_so():
    assert (
        split_bare_unit(r"9\pi sq cm", "centimeters^2") == r"9\pi"
        and split_bare_unit("3t", "ts") == "3"
    )
    assert (
        split_bare_unit("cm", "centimeters") == "cm"
        and split_bare_unit("x+ cm", "centimeters") == "x+ cm"
    )


def test_pi_has_one_spelling():
    assert parse_answer("2 pi") == parse_answer(r"2 \pi") and parse_answer("pie") == Text("pie")
