"""Rejection by hand, every level and measure; bounds are inclusive, unknown log-probs agree."""

from __future__ import annotations

import math

import pytest
import torch

from ascent.losses import rejection_masks
from ascent.maths.segments import Segments

SEGMENTS = Segments.from_lengths([2, 1, 3])
X = torch.tensor([0.2, -0.1, 0.5, 0.0, 0.0, 7.0], dtype=torch.float64)
TRAINED = torch.tensor([True, True, True, True, True, False])
ROLLOUT = torch.zeros_like(X)


def distances(level: str, measure: str) -> list[float]:
    """The smallest limit that keeps each token, found from outside."""
    x = torch.where(TRAINED, X, 0)
    d = 0.5 * x**2 if measure == "k2" else x.exp() - 1 - x
    groups = [d[:2], d[2:3], d[3:5]]
    over = {"sum": torch.sum, "mean": torch.mean, "largest": torch.max}
    if level == "token":
        return d[:5].tolist()
    found = [float(over[level](g)) for g in groups]
    return [found[0], found[0], found[1], found[2], found[2]]


@pytest.mark.parametrize("measure", ["k2", "k3"])
@pytest.mark.parametrize("level", ["token", "sum", "mean", "largest"])
def test_a_token_stays_exactly_up_to_its_distance(level: str, measure: str) -> None:
    expected = distances(level, measure)
    for limit in (1e-9, 0.004, 0.006, 0.0126, 0.0215, 0.0249, 0.03, 0.13, 0.2):
        keep = rejection_masks.distance_within(
            X, ROLLOUT, TRAINED, SEGMENTS, level=level, measure=measure, limit=limit
        )
        assert keep[:5].tolist() == [d <= limit for d in expected], (limit, expected)


def test_worked_example() -> None:
    assert distances("sum", "k2")[0] == pytest.approx(0.025)
    assert distances("mean", "k3")[0] == pytest.approx(0.013120, abs=1e-6)


@pytest.mark.parametrize(
    ("level", "ratios"),
    [
        ("token", [0.2, -0.1, 0.5, 0, 0]),
        ("product", [0.1, 0.1, 0.5, 0, 0]),
        ("geometric", [0.05, 0.05, 0.5, 0, 0]),
    ],
)
def test_ratios_are_trainer_over_sampler_and_bounds_inclusive(
    level: str, ratios: list[float]
) -> None:
    for low, high in ((0.9, 1.1), (1.0, 1.2), (0.5, 1.06), (1.0, 1.0), (0.0, 2.0)):
        keep = rejection_masks.ratio_within(
            X, ROLLOUT, TRAINED, SEGMENTS, level=level, low=low, high=high
        )
        assert keep[:5].tolist() == [low <= math.exp(r) <= high for r in ratios], (low, high)


def test_what_the_sampler_did_not_say_is_no_disagreement() -> None:
    silent = torch.full_like(X, float("nan"))
    assert bool(rejection_masks.ratio_within(X, silent, TRAINED, SEGMENTS)[TRAINED].all())
    assert bool(
        rejection_masks.distance_within(X, silent, TRAINED, SEGMENTS, level="largest")[
            TRAINED
        ].all()
    )


def test_unknown_words_are_refused() -> None:
    with pytest.raises(
        ValueError, match="level='median', but it must be one of token, sum, mean, largest"
    ):
        rejection_masks.distance_within(X, ROLLOUT, TRAINED, SEGMENTS, level="median")
