"""Arithmetic, exactly, and nothing that is not arithmetic."""

from __future__ import annotations

import pytest

from ascent.envs.calculator import calculate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7 * 8", "56"),
        ("2**10", "1024"),
        ("1/4", "0.25"),
        ("1/3", "0.3333333333"),
        ("-1/3", "-0.3333333333"),
        ("0.1 + 0.2", "0.3"),
        ("7 // 2 + 7 % 4", "6"),
        ("-(3 - 5) * +2", "4"),
        ("2 ** -1", "0.5"),
        ("100000000000000000000 + 1", "100000000000000000001"),
        ("1000 / 8", "125"),
    ],
)
def test_values(text: str, value: str) -> None:
    assert calculate(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not arithmetic"),
        ("2 +", "not arithmetic"),
        ("__import__('os')", "not arithmetic"),
        ("x + 1", "'x \\+ 1' is not arithmetic"),
        ("12x", "not arithmetic"),
        ("1e3", "not arithmetic"),
        ("(1, 2)", "not arithmetic"),
        ("True + 1", "not arithmetic"),
        ("[1]*3", "not arithmetic"),
        ("9**9**9", "more than 1000 digits"),
        ("2 ** 0.5", "is not an integer"),
        ("1+" * 200 + "1", "at most 200"),
    ],
)
def test_what_is_no_arithmetic_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        calculate(text)


def test_division_by_zero() -> None:
    with pytest.raises(ZeroDivisionError):
        calculate("1 / (2 - 2)")
