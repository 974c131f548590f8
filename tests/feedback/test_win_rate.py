"""Win rates: Wilson by hand, both orders, and lengths taken out."""

from __future__ import annotations

import math

import pytest

from ascent.feedback.win_rate import combine_orders, length_matched, wilson
from ascent.tasks.keyed_random import KeyedRandom


def test_wilson_by_hand():
    found = wilson(8, 10)
    assert (found.value, found.of) == (0.8, 10)
    assert (found.low, found.high) == pytest.approx((0.49016, 0.94332), abs=1e-5)
    # With p = 1: (1 - z^2/(2n) ...) reduces to n / (n + z^2).
    assert wilson(10, 10).low == pytest.approx(10 / (10 + 1.959964**2)) and wilson(10, 10).high == 1
    assert wilson(0, 10).high == pytest.approx(1 - wilson(10, 10).low) and wilson(
        0, 10
    ).low == pytest.approx(0)


def test_wilson_covers():
    """95% intervals hold the truth in about 95% of draws."""
    noise, inside, draws = KeyedRandom("wilson"), 0, 1000
    for _ in range(draws):
        found = wilson(sum(noise.uniform() < 0.6 for _ in range(60)), 60)
        inside += found.low <= 0.6 <= found.high
    assert 0.93 < inside / draws < 0.975


@pytest.mark.parametrize(("wins", "count"), [(0, 0), (3, 2), (-1, 2)])
def test_wilson_refuses_what_cannot_be(wins, count):
    with pytest.raises(ValueError, match="at least one comparison"):
        wilson(wins, count)


@pytest.mark.parametrize(
    ("forward", "backward", "outcome"),
    [
        ("first", "second", "a"),
        ("second", "first", "b"),
        ("first", "first", "inconsistent"),
        ("second", "second", "inconsistent"),
        ("tie", "tie", "tie"),
        ("tie", "both_bad", "tie"),
        ("first", "tie", "inconsistent"),
    ],
)
def test_both_orders_must_agree(forward, backward, outcome):
    assert combine_orders(forward, backward) == outcome


def test_equal_lengths_leave_the_win_rate_with_half_a_win_and_half_a_loss_more():
    found = length_matched([1.0] * 8 + [0.0] * 2, [0.0] * 10)
    assert found.value == pytest.approx(8.5 / 11)
    error = 1 / math.sqrt(11 * found.value * (1 - found.value))  # of the log-odds
    low = 1 / (1 + math.exp(-(math.log(8.5 / 2.5) - 1.959964 * error)))
    assert found.low == pytest.approx(low, abs=1e-6)


def test_what_length_explains_is_taken_out():
    """A is longer in 40 of 50, and the longer one always wins: raw .8, matched near one half."""
    longer, outcomes = [5.0] * 40 + [-5.0] * 10, [1.0] * 40 + [0.0] * 10
    found = length_matched(outcomes, longer)
    assert found.low < 0.5 < found.high
    assert length_matched(outcomes, [0.0] * 50).low > 0.5
    flipped = length_matched([1 - each for each in outcomes], [-each for each in longer])
    assert flipped.value == pytest.approx(1 - found.value)


def test_it_is_a_stationary_point_and_scale_does_not_matter():
    outcomes, longer = [1, 0.5, 0, 1, 1, 0], [3.0, -1.0, 2.0, 0.0, 7.0, -4.0]
    found = length_matched(outcomes, longer)
    assert length_matched(outcomes, [each * 1000 for each in longer]).value == pytest.approx(
        found.value
    )
    scale = math.sqrt(sum(each**2 for each in longer) / 6)
    xs, ys = [*(each / scale for each in longer), 0.0], [*outcomes, 0.5]

    def best(a: float) -> float:
        """The highest log-posterior over b, by trisection: it is concave."""

        def of(b: float) -> float:
            logs = (
                y * (a + b * x) - math.log1p(math.exp(a + b * x))
                for x, y in zip(xs, ys, strict=True)
            )
            return math.fsum(logs) - b * b / 2

        low, high = -9.0, 9.0
        for _ in range(200):
            third = (high - low) / 3
            low, high = (
                (low + third, high) if of(low + third) < of(high - third) else (low, high - third)
            )
        return of(low)

    a = math.log(found.value / (1 - found.value))
    assert best(a) >= max(best(a - 1e-3), best(a + 1e-3))


def test_a_known_truth_is_found():
    noise = KeyedRandom("lengths")
    longer = [noise.uniform() * 4 - 1 for _ in range(4000)]  # A is longer on average
    rms = math.sqrt(sum(each**2 for each in longer) / len(longer))
    outcomes = [
        float(noise.uniform() < 1 / (1 + math.exp(0.4 - 1.2 * each / rms))) for each in longer
    ]
    found = length_matched(outcomes, longer)
    assert sum(outcomes) / 4000 > 0.52  # raw: A would win
    assert found.low < 1 / (1 + math.exp(0.4)) < found.high < 0.5  # matched: B does


def test_one_side_winning_everything_stays_finite():
    found = length_matched([1.0] * 200, [float(n % 7) for n in range(200)])
    assert 0.5 < found.value < 1 and found.low < found.value < found.high <= 1
