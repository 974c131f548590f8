"""Filters by hand."""

from __future__ import annotations

import torch

from ascent.advantages import select
from ascent.maths.groups import Groups

NAN = float("nan")


def test_varied_keeps_groups_that_are_neither_all_right_nor_all_wrong() -> None:
    groups = Groups.from_ids([0, 0, 1, 1, 2, 2, 3, 3])
    correct = torch.tensor([1.0, 0, 1, 1, 0, 0, 1, NAN])
    assert select.varied(correct, groups).tolist() == [True, True] + [False] * 6


def test_finished_and_scorable() -> None:
    assert select.finished(torch.tensor([True, False])).tolist() == [False, True]
    assert select.scorable(torch.tensor([NAN, 0.0])).tolist() == [False, True]
