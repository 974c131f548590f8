"""Filters by hand."""

from __future__ import annotations

import torch

from ascent.advantages import filters
from ascent.maths.groups import Groups

NAN = float("nan")


def test_varied_keeps_groups_whose_rewards_differ() -> None:
    groups = Groups.from_ids([0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    rewards = torch.tensor([1.0, 0, 1, 1, 0, 0, 1, NAN, 0.25, 0.5])
    assert filters.nonzero_variance(rewards, groups).tolist() == [True, True] + [False] * 6 + [
        True,
        True,
    ]


def test_finished() -> None:
    assert filters.not_truncated(torch.tensor([True, False])).tolist() == [False, True]
