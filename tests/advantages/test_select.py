"""Filters by hand."""

from __future__ import annotations

import torch

from ascent.advantages import select
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments

NAN = float("nan")


def test_varied_keeps_groups_that_are_neither_all_right_nor_all_wrong() -> None:
    groups = Groups.from_ids([0, 0, 1, 1, 2, 2, 3, 3])
    correct = torch.tensor([1.0, 0, 1, 1, 0, 0, 1, NAN])
    assert select.varied(correct, groups).tolist() == [True, True] + [False] * 6


def test_finished_and_scorable() -> None:
    assert select.finished(torch.tensor([True, False])).tolist() == [False, True]
    assert select.scorable(torch.tensor([NAN, 0.0])).tolist() == [False, True]


def test_near_policy_drops_only_negative_samples_the_policy_has_left() -> None:
    segments = Segments.from_lengths([2, 2, 2])
    trained = torch.tensor([True, True, True, False, True, True])
    rollout = torch.tensor([-1.0, -1.0, -1.0, -1.0, -1.0, -1.0])
    now = torch.tensor([-2.0, -2.0, -2.0, 9.0, -1.1, -1.1])
    keep = select.near_policy(now, rollout, torch.tensor([1.0, -1.0, -1.0]), trained, segments, max_drift=0.5)
    assert keep.tolist() == [True, False, True]
