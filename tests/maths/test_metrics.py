"""Metrics merge to what the whole would have given."""

from __future__ import annotations

import math

import pytest
import torch

from ascent.maths.metrics import Explained, Share, average, largest, merge, smallest, spread


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


def test_a_spread_is_that_of_the_whole_also_near_a_large_mean() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 10.0])
    keep = torch.tensor([True, True, False, True])
    pieces = [{"s": spread(x[a:b], keep[a:b])} for a, b in ((0, 1), (1, 4))]
    assert merge(pieces)["s"].value() == pytest.approx(math.sqrt((1 + 4 + 100) / 3 - (13 / 3) ** 2))
    far = torch.tensor([1000.0, 1000.01], dtype=torch.float32)
    assert spread(far, keep[:2]).value() == pytest.approx(float(far.double().std(correction=0)), rel=1e-6)
    assert math.isnan(spread(x[:0], keep[:0]).value())


def test_explained_variance_of_a_perfect_a_constant_and_a_misleading_critic() -> None:
    targets, keep = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.ones(4, dtype=torch.bool)

    def explained(values: torch.Tensor) -> float:
        halves = [
            {"e": Explained(spread((targets - values)[part], keep[part]), spread(targets[part], keep[part]))}
            for part in (slice(0, 1), slice(1, 4))
        ]
        return merge(halves)["e"].value()

    assert explained(targets - 7) == pytest.approx(1)  # off by a constant: nothing is left to explain
    assert explained(torch.zeros(4)) == pytest.approx(0)
    assert explained(-targets) == pytest.approx(-3)
    flat = Explained(spread(targets, keep), spread(torch.ones(4), keep))
    assert math.isnan(flat.value())


def test_the_effective_share_of_weights() -> None:
    keep = torch.ones(4, dtype=torch.bool)
    one, other = torch.tensor([1.0, 1, 1, 1]), torch.tensor([4.0, 0, 0, 0])
    assert Share(spread(one, keep)).value() == pytest.approx(1)
    assert Share(spread(other, keep)).value() == pytest.approx(0.25)
    assert Share(spread(one, keep)).merge(Share(spread(other, keep))).value() == pytest.approx(64 / (8 * 20))
