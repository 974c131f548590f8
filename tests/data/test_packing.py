"""Micro-batches: within the budget, balanced, nothing lost, nothing cut apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascent.data.packing import packing_stats, split_microbatches
from tests.data import make

lengths = st.lists(st.integers(2, 30), min_size=1, max_size=25)


@given(
    st.lists(st.tuples(st.integers(2, 30), st.integers(2, 30)), min_size=1, max_size=25),
    st.integers(60, 200),
)
def test_no_micro_batch_exceeds_the_budget_and_every_item_is_in_one(
    sizes: list[tuple[int, int]], budget: int
) -> None:
    items = [make.pair(*size) for size in sizes]
    batches = split_microbatches(items, budget)
    assert sorted(map(id, items)) == sorted(id(item) for batch in batches for item in batch)
    assert all(batch and sum(item.tokens for item in batch) <= budget for batch in batches)


@given(lengths, st.integers(30, 120))
def test_micro_batches_are_balanced_and_few(sizes: list[int], budget: int) -> None:
    items = [make.example(size) for size in sizes]
    loads = [sum(item.tokens for item in batch) for batch in split_microbatches(items, budget)]
    # Graham's rule: no two loads differ by more than one item; and half-full neighbours would have been merged.
    assert max(loads) - min(loads) <= max(sizes)
    assert len(loads) <= 2 * -(-sum(sizes) // budget)


def test_one_token_over_the_budget_is_over_it() -> None:
    """Two micro-batches would hold these 22 tokens only as 9 + 13."""
    items = [make.example(length) for length in (5, 5, 4, 4, 4)]
    assert [len(batch) for batch in split_microbatches(items, 13)] == [3, 2]
    assert max(sum(item.tokens for item in batch) for batch in split_microbatches(items, 12)) <= 12


def test_order_inside_a_micro_batch_is_the_steps() -> None:
    items = [make.example(length) for length in (3, 9, 4, 8)]
    assert [[items.index(item) for item in batch] for batch in split_microbatches(items, 12)] == [
        [0, 1],
        [2, 3],
    ]


def test_one_record_over_the_budget_is_an_error_with_both_numbers() -> None:
    with pytest.raises(
        ValueError, match="one pairs record has 21 tokens, more than the 20 of a micro-batch"
    ):
        split_microbatches([make.pair(10, 11)], 20)


@given(lengths, st.integers(1, 3))
def test_ranks_share_evenly(sizes: list[int], ranks: int) -> None:
    items = [make.example(size) for size in sizes]
    batches = split_microbatches(items, 10**6, ranks=ranks)
    assert len(batches) == min(ranks, len(items))
    assert all(batches)
    assert sorted(map(id, items)) == sorted(id(item) for batch in batches for item in batch)


def test_ranks_that_cannot_be_served_evenly_get_single_items() -> None:
    items = [make.example(10) for _ in range(3)]
    assert split_microbatches(items, 10, ranks=2) == [[item] for item in items]


def test_the_share_of_real_tokens() -> None:
    batches = [[make.example(30), make.example(2)], [make.example(10)]]
    found = packing_stats(batches)
    assert (found.real, found.computed, found.padded) == (42, 42, 70)
    assert found.efficiency == 1.0
    assert found.padded_efficiency == 0.6
    assert packing_stats(batches, multiple=16).computed == 32 + 16


def test_a_skewed_mix_stays_above_95_percent_even_when_rounded_to_tiles() -> None:
    items = [make.example(8 + (n * n * 7919) % 500 // (1 + n % 7)) for n in range(200)]
    found = packing_stats(split_microbatches(items, 2048), multiple=64)
    assert found.efficiency > 0.95
    assert found.padded_efficiency < 0.5
