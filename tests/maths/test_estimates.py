"""pass@k on counts worked by hand and against every subset; intervals that cover what they claim."""

from __future__ import annotations

import math
import random
from itertools import combinations

import pytest
import torch

from ascent.maths.estimates import estimate, pass_at, powers_of_two, student_interval


@pytest.mark.parametrize(
    ("k", "right", "of", "expected"),
    [
        (1, 2, 4, 1 / 2),
        (2, 2, 4, 5 / 6),
        (4, 1, 4, 1),
        (2, 1, 3, 2 / 3),
        (3, 0, 8, 0),
        (2, 3, 4, 1),
        (1, 8, 8, 1),
    ],
)
def test_pass_at_k_by_hand(k: int, right: int, of: int, expected: float) -> None:
    assert pass_at(k, right=right, of=of) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("of", [1, 3, 6])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(of: int) -> None:
    for right in range(of + 1):
        verdicts = [place < right for place in range(of)]
        for k in range(1, of + 1):
            subsets = list(combinations(verdicts, k))
            share = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at(k, right=right, of=of) == pytest.approx(share, abs=1e-12)


def test_pass_at_k_has_no_bias_and_the_plug_in_formula_has() -> None:
    """Exactly, by summing over every count that samples of a prompt with p = 0.3 can give."""
    p, of, k = 0.3, 6, 4
    chances = [math.comb(of, c) * p**c * (1 - p) ** (of - c) for c in range(of + 1)]
    ours = sum(chance * pass_at(k, right=c, of=of) for c, chance in enumerate(chances))
    plugged = sum(chance * (1 - (1 - c / of) ** k) for c, chance in enumerate(chances))
    truth = 1 - (1 - p) ** k
    assert ours == pytest.approx(truth, abs=1e-12)
    assert plugged < truth - 0.02


def test_large_counts_do_not_overflow() -> None:
    assert pass_at(1000, right=1, of=2000) == pytest.approx(0.5, abs=1e-12)


def test_powers_of_two() -> None:
    assert [powers_of_two(n) for n in (0, 1, 2, 3, 8, 9)] == [
        [],
        [1],
        [1, 2],
        [1, 2],
        [1, 2, 4, 8],
        [1, 2, 4, 8],
    ]


def test_an_interval_has_the_width_of_the_standard_error() -> None:
    values = [float(n % 2) for n in range(400)]
    found = estimate(values)
    assert found.value == 0.5 and found.prompts == 400
    assert found.low is not None and found.high is not None
    # Mean 1/2, standard deviation 1/2 over the root of 400; 1.96 of them to each side.
    assert found.low == pytest.approx(0.5 - 1.96 * 0.025, abs=0.006)
    assert found.high == pytest.approx(0.5 + 1.96 * 0.025, abs=0.006)
    narrower = estimate(values, level=0.5)
    assert narrower.low is not None and narrower.low > found.low


def test_the_interval_covers_as_often_as_it_says() -> None:
    """300 sets of 80 prompts. The share has a standard error of 1.3%, and small sets cover a little less than 95%."""
    rng, covered = random.Random(0), 0
    for each in range(300):
        found = estimate([float(rng.random() < 0.3) for _ in range(80)], seed=each, resamples=500)
        assert found.low is not None and found.high is not None
        covered += found.low <= 0.3 <= found.high
    assert 0.90 * 300 <= covered <= 0.99 * 300


def test_seeds_and_degenerate_sets() -> None:
    values = [0.0, 0.25, 1.0, 0.5]
    many = [n**0.5 for n in range(50)]
    assert estimate(many, seed=1) == estimate(many, seed=1) != estimate(many, seed=2)
    before = torch.random.get_rng_state()
    estimate(values)
    assert torch.equal(before, torch.random.get_rng_state())  # nobody else's noise is touched
    one = estimate([0.25])
    assert (one.value, one.low, one.high) == (0.25, None, None)
    same = estimate([1.0, 1.0])
    assert (same.low, same.high) == (1.0, 1.0)


def test_resamples_are_drawn_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    import ascent.maths.estimates as estimates

    values = [float(n) for n in range(7)]
    whole = estimate(values, resamples=50)
    monkeypatch.setattr(estimates, "CHUNK", 21)
    assert estimate(values, resamples=50) == whole


def test_errors_name_the_value_and_the_rule() -> None:
    with pytest.raises(ValueError, match="pass@5 from 4 samples"):
        pass_at(5, right=1, of=4)
    with pytest.raises(ValueError, match="right=5 of 4"):
        pass_at(1, right=5, of=4)
    with pytest.raises(ValueError, match="at least one prompt"):
        estimate([])
    with pytest.raises(ValueError, match="level=1"):
        estimate([1.0], level=1)
    with pytest.raises(ValueError, match="resamples=0"):
        estimate([1.0, 2.0], resamples=0)


def test_the_interval_over_seeds_covers_the_mean_of_few_normal_values() -> None:
    """Three values 1, 2, 3: 2 +- 4.3027 / sqrt(3). Of draws of 3 and of 15, 95% of the intervals hold the mean."""
    found = student_interval([1.0, 2.0, 3.0])
    assert found == pytest.approx((2 - 4.3027 / math.sqrt(3), 2 + 4.3027 / math.sqrt(3)))
    assert student_interval([1.0]) is None
    draw = random.Random(0)
    for count in (3, 15):
        intervals = [
            student_interval([draw.gauss(5, 2) for _ in range(count)]) for _ in range(4000)
        ]
        assert sum(low < 5 < high for low, high in intervals) / 4000 == pytest.approx(
            0.95, abs=0.01
        )
