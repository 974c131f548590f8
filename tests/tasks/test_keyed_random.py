"""Counter-based noise: the same everywhere, uniform, independent of who drew before."""

from __future__ import annotations

import math

import pytest

from ascent.tasks.keyed_random import KeyedRandom, stable_hash


def test_the_same_key_gives_the_same_stream_and_another_key_another() -> None:
    assert [KeyedRandom("a", 1).bits() for _ in range(2)] == [KeyedRandom("a", 1).bits()] * 2
    assert KeyedRandom("a", 1).bits() != KeyedRandom("a", 2).bits()


def test_the_stream_is_pinned() -> None:
    """A change here changes every task: these numbers may only move with a note in the changelog."""
    assert stable_hash("ascent") == 17713323099564855495
    noise = KeyedRandom("pinned", 7)
    assert [noise.integer(0, 9) for _ in range(12)] == [7, 7, 1, 9, 5, 3, 9, 3, 3, 4, 1, 3]


def test_draws_are_uniform() -> None:
    noise = KeyedRandom("uniform")
    counts = [0] * 10
    for _ in range(20_000):
        counts[noise.integer(0, 9)] += 1
    # Chi-squared with 9 degrees of freedom: above 27.9 once in a thousand.
    assert sum((count - 2000) ** 2 / 2000 for count in counts) < 27.9


def test_gumbel_has_its_mean() -> None:
    noise = KeyedRandom("gumbel")
    mean = sum(noise.gumbel() for _ in range(20_000)) / 20_000
    assert abs(mean - 0.5772) < 4 * math.pi / math.sqrt(6 * 20_000)


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"integer\(3, 2\)"):
        KeyedRandom("a").integer(3, 2)
