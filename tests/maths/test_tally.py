"""Metrics merge to what the whole would have given."""

from __future__ import annotations

import math

import torch

from ascent.maths.tally import average, largest, merge, smallest


def test_merged_mean_is_the_mean_of_the_whole_not_of_the_means() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 10.0])
    keep = torch.ones(4, dtype=torch.bool)
    pieces = [{"m": average(x[a:b], keep[a:b])} for a, b in ((0, 3), (3, 4))]
    assert merge(pieces)["m"].value() == 4.0


def test_extremes_and_empty_pieces() -> None:
    x = torch.tensor([1.0, float("nan"), -3.0])
    keep = torch.tensor([True, False, True])
    none = torch.zeros(0, dtype=torch.bool)
    pieces = [
        {"high": largest(x, keep), "low": smallest(x, keep), "share": average(x > 0, keep)},
        {"high": largest(x[:0], none), "low": smallest(x[:0], none), "share": average(x[:0] > 0, none)},
    ]
    whole = merge(pieces)
    assert (whole["high"].value(), whole["low"].value(), whole["share"].value()) == (1.0, -3.0, 0.5)
    assert math.isnan(average(x[:0], none).value())
