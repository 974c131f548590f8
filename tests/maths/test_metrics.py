"""Metrics merge to what the whole would have given."""

from __future__ import annotations

import math

import pytest
import torch

from ascent.maths.metrics import (
    EffectiveSampleFraction,
    ExplainedVariance,
    max_of,
    mean_of,
    merge,
    min_of,
    std_of,
)


def test_merged_mean_is_the_mean_of_the_whole_not_of_the_means() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 10.0])
    keep = torch.ones(4, dtype=torch.bool)
    pieces = [{"m": mean_of(x[a:b], keep[a:b])} for a, b in ((0, 3), (3, 4))]
    assert merge(pieces)["m"].value() == 4.0


def test_extremes_and_empty_pieces() -> None:
    x = torch.tensor([1.0, float("nan"), -3.0])
    keep = torch.tensor([True, False, True])
    none = torch.zeros(0, dtype=torch.bool)
    pieces = [
        {"high": max_of(x, keep), "low": min_of(x, keep), "share": mean_of(x > 0, keep)},
        {
            "high": max_of(x[:0], none),
            "low": min_of(x[:0], none),
            "share": mean_of(x[:0] > 0, none),
        },
    ]
    whole = merge(pieces)
    assert (whole["high"].value(), whole["low"].value(), whole["share"].value()) == (1.0, -3.0, 0.5)
    for made in (mean_of, max_of, min_of):
        assert math.isnan(made(x[:0], none).value()) and math.isnan(
            made(x, torch.zeros_like(keep)).value()
        )
    assert (
        max_of(torch.tensor([math.inf]), keep[:1]).value() == math.inf
    )  # a value, unlike that of no entries


def test_a_spread_is_that_of_the_whole_also_near_a_large_mean() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 10.0])
    keep = torch.tensor([True, True, False, True])
    pieces = [{"s": std_of(x[a:b], keep[a:b])} for a, b in ((0, 1), (1, 4))]
    assert merge(pieces)["s"].value() == pytest.approx(math.sqrt((1 + 4 + 100) / 3 - (13 / 3) ** 2))
    far = torch.tensor([1000.0, 1000.01], dtype=torch.float32)
    assert std_of(far, keep[:2]).value() == pytest.approx(
        float(far.double().std(correction=0)), rel=1e-6
    )
    assert math.isnan(std_of(x[:0], keep[:0]).value())


def test_explained_variance_of_a_perfect_a_constant_and_a_misleading_critic() -> None:
    targets, keep = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.ones(4, dtype=torch.bool)

    def explained(values: torch.Tensor) -> float:
        halves = [
            {
                "e": ExplainedVariance(
                    std_of((targets - values)[part], keep[part]), std_of(targets[part], keep[part])
                )
            }
            for part in (slice(0, 1), slice(1, 4))
        ]
        return merge(halves)["e"].value()

    assert explained(targets - 7) == pytest.approx(
        1
    )  # off by a constant: nothing is left to explain
    assert explained(torch.zeros(4)) == pytest.approx(0)
    assert explained(-targets) == pytest.approx(-3)
    flat = ExplainedVariance(std_of(targets, keep), std_of(torch.ones(4), keep))
    assert math.isnan(flat.value())


def test_the_effective_share_of_weights() -> None:
    keep = torch.ones(4, dtype=torch.bool)
    one, other = torch.tensor([1.0, 1, 1, 1]), torch.tensor([4.0, 0, 0, 0])
    assert EffectiveSampleFraction(std_of(one, keep)).value() == pytest.approx(1)
    assert EffectiveSampleFraction(std_of(other, keep)).value() == pytest.approx(0.25)
    assert EffectiveSampleFraction(std_of(one, keep)).merge(
        EffectiveSampleFraction(std_of(other, keep))
    ).value() == pytest.approx(64 / (8 * 20))
