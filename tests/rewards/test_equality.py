"""The worked example, and the rules one by one, without computer algebra."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.rewards.equality import BadGold, NeedsSymbolic, compare, nesting, no_symbolic, oversized


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        *[(r"\frac{1}{3}", "0.333333", True), (r"\frac{1}{3}", "0.3333", False)],
        *[("0.5", "1/2", True), ("0.5", "0.50001", False), ("1,234", "12,34", False)],
        # Two fractions, or a fraction and an integer, have exact values; a decimal may be rounded.
        *[
            (r"\frac{1234567}{7654321}", r"\frac{1234568}{7654321}", False),
            ("1000001", r"\frac{2000000}{2}", False),
        ],
        *[(r"\frac{10000000}{3}", "3333333", False), (r"\frac{10000000}{3}", "3333333.3", True)],
        *[
            (r"\frac{1}{1024}", "0.000976563", True),
            (r"\frac{2}{4}", r"\frac{1}{2}", True),
            (r"\frac{4}{2}", "2.0", True),
        ],
        *[("50%", "50", True), ("50%", "0.5", True), ("0.5", "0.5%", False)],
        *[
            ("5 cm", "5", True),
            ("5 cm", "5 m", False),
            ("x = 5", "5", True),
            ("x = 5", "y = 5", False),
        ],
        *[("1, 2", "2, 1", True), ("(1, 2)", "(2, 1)", False), (r"\{1, 2\}", r"\{2, 1, 1\}", True)],
    ],
)
def test_settled_without_computer_algebra(gold, answer, right):
    assert compare(gold, answer, no_symbolic)[0] is right


def test_left_to_computer_algebra():
    with pytest.raises(NeedsSymbolic):
        compare(r"\sqrt{8}", r"2\sqrt{2}", no_symbolic)


def test_a_gold_that_is_none():
    with pytest.raises(BadGold, match="cannot be read"):
        compare(r"\frac{1}{", "1", no_symbolic)
    with pytest.raises(BadGold, match="it has 2001 characters, and at most 2000 are read"):
        compare("1" * 2001, "1", no_symbolic)


def agree(gold, answer):
    """Computer algebra for which everything is equal."""
    return True


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        *[
            ("42", "40+2"),
            ("42", r"6 \times 7"),
            ("42", "(40)+(2)"),
            ("42", "40+{2}"),
            ("42", "(6)(7)"),
            ("42", "6{7}"),
        ],
        *[
            ("-7", r"(-49)\div 7"),
            ("-7", "-49÷7"),
            ("120", r"\binom{10}{3}"),
            ("306", r"\frac{18!}{16!}"),
            ("120", "5!"),
        ],
        *[
            ("4", r"\log_3 81"),
            ("6", r"\left\lfloor 6.7 \right\rfloor"),
            ("1", r"\sin 90^\circ"),
            ("5", "|-5|"),
        ],
        *[
            ("5", r"\sqrt{9+16}"),
            ("32", "2^{2+3}"),
            ("10", r"\sum_{k=1}^4 k"),
            ("12", r"2\sqrt{36}"),
        ],
        *[
            (r"\frac{5}{36}", r"(\frac12+\frac13)(\frac12-\frac13)"),
            ("27", r"\sqrt{9^3}"),
            (r"\frac16", r"\frac{\frac12}{3}"),
        ],
        *[("1, 42", "1, (6)(7)"), ("42", "x = (6)(7)"), ("-3", "(x+3)(x-1)-x(x+2)")],
    ],
)
def test_undone_arithmetic_is_no_number(gold, answer):
    """Otherwise the question itself, copied into the box, would pass for its answer."""
    assert compare(gold, answer, agree)[0] is False


@pytest.mark.parametrize(
    "answer",
    [
        *[
            "2^{10}",
            "(-1)^2",
            "10^{-3}",
            "-(2^3)",
            "2^{1/2}",
            r"8^{\frac23}",
            r"\left(\frac{2}{3}\right)^5",
        ],
        *[
            r"\sqrt{16}",
            r"\sqrt[3]{8}",
            r"\sqrt{\frac14}",
            r"-\frac{1}{2^3}",
            r"\frac{\sqrt{16}}{3}",
            r"{3 \over 4}",
        ],
        *[r"2^{10} \text{ cm}", "n = 2^{10}", r"6 \times {10}^{3}"],
    ],
)
def test_one_fraction_power_or_root_is_a_number(answer):
    assert compare("6000", answer, agree)[0] is True


@settings(max_examples=200, deadline=None)
@given(
    st.integers(-99, 99),
    st.integers(-99, 99),
    st.sampled_from(["+", "-", "*", r"\times", r"\cdot", r"\div", "÷", ""]),
)
def test_no_brackets_hide_an_operation(a, b, operator):
    spellings = ["({})", "{{{}}}", "[{}]", r"\left({}\right)", "{{({})}}"]
    for first in (*spellings, "{}"):
        for second in spellings if not operator or b < 0 else (*spellings, "{}"):
            assert (
                compare("42", f"{first.format(a)}{operator} {second.format(b)}", agree)[0] is False
            )


def test_what_computer_algebra_is_not_given():
    assert nesting("(1, [2, {3}])") == 3 and nesting(")(") == 1 and nesting("x") == 0
    assert not oversized("x+1", "x" * 400) and oversized("x+1", "x" * 401)
    assert not oversized("x" * 300, "x" * 900) and oversized("x" * 300, "x" * 901)
    assert not oversized("x" * 1900, "x" * 2000) and oversized("x" * 1900, "x" * 2001)
    assert not oversized("x", "(" * 8 + "x" + ")" * 8) and oversized("x", "(" * 9 + "x" + ")" * 9)
    assert not oversized("{" * 9 + "x" + "}" * 9, "(" * 9 + "x" + ")" * 9)


def test_an_oversized_answer_is_compared_by_its_letters():
    asked = []

    def algebra(gold, answer):
        asked.append(answer)
        return True

    deep = "{" * 9 + "x" + "}" * 9
    assert compare("x+1", f"1+{deep}", algebra) == (False, 0.0)
    assert compare("x+1", "x" * 500, algebra) == (False, 0.0)
    assert compare("x+1, 2", f"2, {deep}", algebra) == (
        False,
        0.5,
    )  # what needs no algebra is read as always
    assert asked == ["x+1", "x+1"]  # the gold alone
    assert compare("x+1", "(x)+1", algebra) == (True, 1.0) and asked[-1] == "(x)+1"
    assert compare(f"{deep}+1", f"1+{deep}", algebra) == (True, 1.0)
