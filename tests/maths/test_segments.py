"""Segments: layout, sums, last tokens, and the errors a wrong layout gets."""

from __future__ import annotations

import pytest
import torch

from ascent.maths.segments import Segments, concat_ranges

TWO = Segments.from_lengths([3, 0, 2])


def test_three_ways_to_say_the_same_layout() -> None:
    for other in (Segments.from_ids([0, 0, 0, 2, 2]), Segments.from_offsets([0, 3, 3, 5])):
        assert other.lengths_B.tolist() == [3, 0, 2]
        assert other.ids_T.tolist() == [0, 0, 0, 2, 2]
    assert TWO.offsets.tolist() == [0, 3, 3, 5]
    assert (TWO.count, TWO.total) == (3, 5)


def test_sums_means_and_spread() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 10.0, 20.0])
    assert TWO.sum(x).tolist() == [6, 0, 30]
    assert TWO.sum(x > 2).tolist() == [1, 0, 2]
    keep = torch.tensor([True, False, True, False, False])
    assert TWO.mean(x, keep).tolist() == [2, 0, 0]
    assert TWO.broadcast(torch.tensor([7, 8, 9])).tolist() == [7, 7, 7, 9, 9]


def test_mean_does_not_read_what_the_mask_drops() -> None:
    x = torch.tensor([1.0, float("nan"), 3.0, 4.0, 5.0])
    assert TWO.mean(x, torch.tensor([True, False, True, True, True])).tolist() == [2, 0, 4.5]


def test_last_kept_token_of_each_segment() -> None:
    keep = torch.tensor([True, True, False, False, False])
    assert TWO.last(keep).tolist() == [False, True, False, False, False]


def test_ranges_follow_each_other() -> None:
    found = concat_ranges(torch.tensor([5, 0, 9]), torch.tensor([2, 0, 3]))
    assert found.tolist() == [5, 6, 9, 10, 11]
    assert concat_ranges(torch.tensor([4]), torch.tensor([0])).tolist() == []


def test_select_closes_holes() -> None:
    inner = TWO.select(torch.tensor([True, False, True, False, True]))
    assert inner.lengths_B.tolist() == [2, 0, 1]
    assert inner.ids_T.tolist() == [0, 0, 2]


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Segments.from_lengths([]), "empty batch"),
        (lambda: Segments.from_lengths([3, -1]), "negative"),
        (lambda: Segments.from_lengths([[1]]), "flat list"),
        (lambda: Segments.from_ids([0, 1, 0]), "unsorted or overlap"),
        (lambda: Segments.from_ids([]), "at least one token"),
        (lambda: Segments.from_ids([0, 2], count=2), "count=2"),
        (lambda: Segments.from_offsets([0, 4, 2]), "overlap"),
        (lambda: Segments.from_offsets([1, 4]), "start at 0"),
        (lambda: TWO.sum(torch.ones(4)), "mismatched lengths"),
        (lambda: TWO.broadcast(torch.ones(2)), "one per segment"),
    ],
)
def test_a_wrong_layout_is_refused_in_words(build, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build()
