"""A curve in one line."""

from __future__ import annotations

import math

from ascent.runs.sparkline import sparkline


def test_the_smallest_mean_is_the_lowest_block_and_the_largest_the_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([7, 0]) == "█▁"


def test_many_values_are_averaged_and_none_is_left_out() -> None:
    assert sparkline([0, 2, 0, 2, 10, 12, 10, 12], width=2) == "▁█"
    assert len(sparkline(list(range(1000)), width=16)) == 16
    assert sparkline([0, 0, 0, 0, 0, 0, 0, 0, 0, 100], width=3) == "▁▁█"  # the last value counts


def test_gaps_constants_and_nothing() -> None:
    assert sparkline([1.0, math.nan, 2.0]) == "▁ █"
    assert sparkline([3.0, 3.0]) == "▅▅"
    assert sparkline([math.nan, math.inf]) == "  "
    assert sparkline([]) == ""
