"""Cells: what a function needs and what can be configured, read off its signature."""

from __future__ import annotations

import pytest

from ascent.cells import cell, nearest
from ascent.parameter_ranges import Positive, checked, ordered


@checked
def scale(
    rewards_B: float, groups: float, extra_B: float | None = None, *, eps: Positive, power: int = 2
) -> float:
    """Doubles things.

    More words.
    """
    return (rewards_B + groups + (extra_B or 0)) * eps * power


def test_inputs_numbers_and_summary() -> None:
    made = cell(scale, eps=0.5)
    assert made.inputs == ("rewards_B", "groups", "extra_B")
    assert made.required == ("rewards_B", "groups")
    assert dict(made.numbers) == {"eps": 0.5, "power": 2}
    assert (made.name, made.summary, made.weight) == ("scale", "Doubles things.", 1.0)


def test_it_picks_what_it_needs_by_name() -> None:
    made = cell(scale, eps=1.0)
    assert made({"rewards_B": 1.0, "groups": 2.0, "other_T": 9.0}) == 6.0
    assert made({"rewards_B": 1.0, "groups": 2.0, "extra_B": 1.0}) == 8.0
    with pytest.raises(KeyError, match="scale needs groups"):
        made({"rewards_B": 1.0})


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"epz": 1.0}, r"no number 'epz'; did you mean eps\?"),
        ({}, "needs a value for eps"),
        ({"eps": -1.0}, r"eps=-1.0.*above 0"),
        ({"eps": 1.0, "power": 1.5}, "whole number"),
        ({"eps": 1.0, "weight": -0.1}, "weight=-0.1"),
        ({"eps": 1.0, "weight": float("nan")}, "weight=nan"),
    ],
)
def test_bad_numbers_fail_when_the_cell_is_made(numbers: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        cell(scale, **numbers)


def test_nearest_names() -> None:
    assert nearest("gpro", ["grpo", "sft"]) == "did you mean grpo?"
    assert nearest("zzz", ["a", "b"]) == "known: a, b"


@checked
@ordered("floor", "cap")
def hold(log_ratio_T: float, *, floor: float = 0.5, cap: float = 2.0) -> float:
    """Holds."""
    return min(max(log_ratio_T, floor), cap)


def test_two_numbers_in_the_wrong_order_fail_when_the_cell_is_made_and_when_called() -> None:
    with pytest.raises(ValueError, match=r"hold: floor=3\.0 > cap=2\.0"):
        cell(hold, floor=3.0)
    with pytest.raises(ValueError, match=r"hold: floor=0\.5 > cap=0\.1"):
        hold(1.0, cap=0.1)
    assert cell(hold, floor=2.0)({"log_ratio_T": 9.0}) == 2.0
