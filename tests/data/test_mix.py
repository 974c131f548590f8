"""Epochs, shares and positions of a mixture."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascent.data.mix import Draw, Mixture, Stream, epoch_order

sizes = st.lists(st.integers(1, 9), min_size=1, max_size=4)


def mixture(
    of: list[int], weights: list[float] | None = None, seed: int = 0, shuffle: bool = True
) -> Mixture:
    shares = weights or [1.0] * len(of)
    streams = [
        Stream(f"s{number}", size, share)
        for number, (size, share) in enumerate(zip(of, shares, strict=True))
    ]
    return Mixture(streams, seed=seed, shuffle=shuffle)


@given(sizes, st.integers(0, 5))
def test_every_record_comes_exactly_once_per_epoch(of: list[int], seed: int) -> None:
    mixed = mixture(of, seed=seed)
    drawn = mixed.take(200)
    for source, size in enumerate(of):
        places = [each.record for each in drawn if each.source == source]
        for start in range(0, len(places) - size + 1, size):
            assert sorted(places[start : start + size]) == list(range(size))


@given(sizes, st.data())
def test_shares_hold_at_every_point(of: list[int], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(0.05, 10), min_size=len(of), max_size=len(of)))
    mixed = mixture(of, weights)
    counts = [0] * len(of)
    for number in range(1, 200):
        counts[mixed.next().source] += 1
        for count, weight in zip(counts, weights, strict=True):
            assert abs(count - number * weight / sum(weights)) < len(of)


@given(sizes, st.integers(0, 60), st.integers(1, 60))
def test_a_resumed_stream_continues_exactly(of: list[int], before: int, after: int) -> None:
    first = mixture(of)
    first.take(before)
    state = json.loads(json.dumps(first.state()))
    second = mixture(of)
    second.load_state(state)
    assert second.position == before
    assert second.take(after) == first.take(after)


def test_each_epoch_has_its_own_order_and_so_has_each_seed_and_source() -> None:
    orders = [
        epoch_order(50, source=source, seed=seed, epoch=epoch)
        for source in (0, 1)
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert len({tuple(order) for order in orders}) == 8


def test_the_order_is_pinned() -> None:
    """The same seed gives the same data on every machine and with every version of every library."""
    assert epoch_order(8, source=0, seed=0, epoch=0) == [3, 4, 1, 2, 6, 5, 0, 7]


def test_orders_are_uniform() -> None:
    first = [epoch_order(5, source=0, seed=seed, epoch=1)[0] for seed in range(2000)]
    # Chi-squared with 4 degrees of freedom: above 18.5 once in a thousand.
    assert sum((first.count(place) - 400) ** 2 / 400 for place in range(5)) < 18.5


def test_without_shuffling_the_file_order_is_kept() -> None:
    assert mixture([3], shuffle=False).take(4) == [
        Draw(0, 0, 0),
        Draw(0, 1, 0),
        Draw(0, 2, 0),
        Draw(0, 0, 1),
    ]


def test_epochs_are_told_with_their_fraction() -> None:
    mixed = mixture([4])
    mixed.take(6)
    assert mixed.epochs == {"s0": 1.5}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"of": [3, 3]}, r"shares was \[1\.0\] and is \[0\.5, 0\.5\]"),
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"shuffle": False}, "shuffle was True and is False"),
    ],
)
def test_a_position_of_another_mixture_is_refused(change: dict[str, object], words: str) -> None:
    state = mixture([3]).state()
    with pytest.raises(ValueError, match=words):
        mixture(**({"of": [3]} | change)).load_state(state)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [2, 3, 5, 40])
def test_a_position_holds_in_a_dataset_that_grew_or_shrank(size: int) -> None:
    """The stream of the new records, from as many draws on; the rest of an epoch keeps its order."""
    first, second, whole = mixture([3]), mixture([size]), mixture([size])
    first.take(4)
    second.load_state(first.state())
    assert second.take(10) == whole.take(14)[4:]
    further = mixture([size])
    further.load_state(second.state())
    assert further.take(10) == second.take(10)
    orders = [
        [each for each in epoch_order(n, source=0, seed=0, epoch=0) if each < 3]
        for n in (3, max(3, size))
    ]
    assert orders[0] == orders[1]


def test_shares_of_a_mixture_that_grew_stay() -> None:
    first, second = mixture([3, 5], [0.75, 0.25]), mixture([3, 50], [0.75, 0.25])
    first.take(6)
    second.load_state(first.state())
    assert [each.source for each in second.take(10)] == [each.source for each in first.take(10)]
    other = mixture([3, 50], [0.5, 0.5])
    with pytest.raises(ValueError, match=r"shares was \[0\.75, 0\.25\] and is \[0\.5, 0\.5\]"):
        other.load_state(first.state())


@pytest.mark.parametrize(
    ("streams", "words"),
    [
        ([], "an empty mixture"),
        ([Stream("a", 0)], "no records"),
        ([Stream("a", 1, 0.0)], "weight 0.0"),
        ([Stream("a", 1, float("inf"))], "weight inf"),
        ([Stream("a", 1), Stream("a", 1)], "the same name twice"),
    ],
)
def test_what_cannot_be_mixed(streams: list[Stream], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Mixture(streams, seed=0)
