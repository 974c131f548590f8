"""The score at the end of a run from its first part: sigmoids are found again, and what cannot be known is not said."""

from __future__ import annotations

import random

import pytest

from ascent.diagnose.score_curve import fit_score


def sigmoid(c: float, start: float, top: float, middle: float, slope: float) -> float:
    return start + (top - start) / (1 + (middle / c) ** slope)


def test_a_clean_sigmoid_is_continued() -> None:
    curve = [(float(c), sigmoid(c, 0.1, 0.8, 20, 2)) for c in range(1, 41)]
    found = fit_score(curve, 120)
    assert found.value is not None and found.low is not None and found.high is not None
    end = sigmoid(120, 0.1, 0.8, 20, 2)
    assert found.low <= end <= found.high and found.high - found.low < 0.25
    assert found.value == pytest.approx(end, abs=0.1)


def test_intervals_hold_as_often_as_they_say() -> None:
    """80%, over sigmoids with noise that no grid point is equal to."""
    draw = random.Random(0)
    inside = []
    for _ in range(60):
        shape = (
            draw.uniform(0, 0.3),
            draw.uniform(0.3, 1),
            draw.uniform(5, 60),
            draw.uniform(0.8, 3.5),
        )
        noise = draw.uniform(0.02, 0.08)
        curve = [
            (float(c), min(1, max(0, sigmoid(c, *shape) + draw.gauss(0, noise))))
            for c in range(1, 21)
        ]
        found = fit_score(curve, 60)
        if found.low is not None and found.high is not None:
            inside.append(found.low <= sigmoid(60, *shape) <= found.high)
    assert len(inside) > 30
    assert 0.65 <= sum(inside) / len(inside) <= 0.97


def test_what_cannot_be_known_yet() -> None:
    flat = [(float(c), 0.2) for c in range(1, 31)]
    assert "5 scores, fewer than 6" in fit_score(flat[:5], 20).why
    assert "10% of the run is over" in fit_score(flat[:10], 100).why
    assert "the run is over" in fit_score(flat, 30).why
    wild = [(float(c), 0.5 + 0.5 * (-1) ** c) for c in range(1, 9)]
    found = fit_score(wild, 40)
    assert found.value is None and "everything is possible" in found.why
    assert found.text().startswith("cannot be known yet")


def test_a_falling_score_is_continued_too() -> None:
    curve = [(float(c), sigmoid(c, 0.6, 0.05, 8, 2)) for c in range(1, 21)]
    found = fit_score(curve, 60)
    assert found.high is not None and found.high < 0.25


def test_many_points_are_averaged() -> None:
    draw = random.Random(1)
    curve = [(float(c), sigmoid(c, 0.1, 0.7, 300, 2) + draw.gauss(0, 0.1)) for c in range(1, 1001)]
    found = fit_score(curve, 3000)
    assert found.low is not None and found.high is not None
    assert found.low <= sigmoid(3000, 0.1, 0.7, 300, 2) <= found.high
