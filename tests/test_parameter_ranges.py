"""Numbers with a stated range."""

from __future__ import annotations

import pytest

from ascent.parameter_ranges import (
    AboveOne,
    BelowHalf,
    Count,
    Fraction,
    NonNegative,
    Positive,
    Range,
    check_number,
    checked,
)


@checked
def example(
    x: float,
    *,
    a: Positive = 1.0,
    b: NonNegative = 0.0,
    c: Fraction = 0.5,
    d: Count = 1,
    e: AboveOne = 2.0,
    f: BelowHalf = 0.0,
    g: float = 0.0,
) -> float:
    return x + a


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"a": 0}, "example: a=0, but it must be above 0"),
        ({"b": -1e-9}, "at least 0"),
        ({"c": 1.1}, "at most 1"),
        ({"d": 0}, "at least 1"),
        ({"d": 1.5}, "d=1.5, but it must be a whole number"),
        ({"d": True}, "a whole number"),
        ({"e": 1}, "above 1"),
        ({"f": 0.5}, "below 0.5"),
        ({"a": float("nan")}, "must be a number"),
        ({"a": "big"}, "a='big', but it must be a number"),
        ({"a": 10**400}, "example: a has about 398 digits, but it must be within 2\\^63"),
        ({"d": 10**5000}, "example: d has about 4983 digits, but it must be within 2\\^63"),
    ],
)
def test_the_value_and_the_rule_are_named(numbers: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        example(1.0, **numbers)


def test_a_number_without_a_range_must_be_one() -> None:
    with pytest.raises(ValueError, match="example: g=nan, but it must be a number"):
        check_number("example", "g", float("nan"), float, None)


def test_a_range_may_let_zero_pass() -> None:
    rule = Range(above=1, or_zero=True)
    assert [rule.broken_by(value) for value in (0, 1.1, 1, -1)] == [
        None,
        None,
        "0 or above 1",
        "0 or above 1",
    ]


def test_what_fits_passes() -> None:
    assert example(1.0, a=2, b=0, c=1, d=3, e=1.01, f=0.49, g=-7) == 3.0
