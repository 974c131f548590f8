"""Groups: any integer ids, ragged sizes, members apart, unscored members left out."""

from __future__ import annotations

import pytest
import torch

from ascent.maths.groups import Groups

IDS = Groups.from_ids([70, 3, 70, 3, 3])
ALL = torch.ones(5, dtype=torch.bool)


def test_ids_are_numbered_from_zero_whatever_they_were() -> None:
    assert IDS.ids_B.tolist() == [1, 0, 1, 0, 0]
    assert IDS.count == 2


def test_mean_and_sample_std() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 6.0])
    assert IDS.mean(x, ALL).tolist() == [4.0, 2.0]
    assert IDS.std(x, ALL).tolist() == pytest.approx([2.0, 2**0.5])


def test_what_is_not_valid_is_not_read() -> None:
    x = torch.tensor([1.0, float("nan"), 3.0, 4.0, 6.0])
    assert IDS.mean(x, ~torch.isnan(x)).tolist() == [5.0, 2.0]


def test_all_equal_is_relative_to_the_size_of_the_numbers() -> None:
    x = torch.tensor([1e9, 5.0, 1e9 + 64, 5.0, 5.0], dtype=torch.float64)
    assert IDS.all_equal(x, ALL).tolist() == [True, True]
    assert IDS.all_equal(x + torch.tensor([0, 1e-3, 0, 0, 0]), ALL).tolist() == [False, True]


def test_mismatched_lengths_and_empty_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="mismatched lengths"):
        IDS.sum(torch.ones(4))
    with pytest.raises(ValueError, match="empty batch"):
        Groups.from_ids([])


def test_pieces_keep_their_uids_and_find_each_other_again() -> None:
    groups = Groups.from_ids([4, 9, 4, 6])
    pieces = [groups.select(torch.tensor(rows)) for rows in ([1, 0], [2], [3])]
    assert [piece.ids_B.tolist() for piece in pieces] == [[1, 0], [0], [0]]
    assert Groups.concat(pieces).uids_B.tolist() == [9, 4, 4, 6]
    assert Groups.concat(pieces).ids_B.tolist() == [2, 0, 0, 1]


def test_groups_beyond_others_are_none_of_them() -> None:
    first, second = Groups.from_ids([5, 7, 5]), Groups.from_ids([5, 5, 7])
    assert Groups.concat([first, second.beyond(first)]).ids_B.tolist() == [0, 1, 0, 2, 2, 3]
