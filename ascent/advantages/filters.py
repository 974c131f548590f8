"""Filters as pure predicates: which sequences stay in the loss. True means keep.

Axes: B sequences. Filters read rewards before any shaping: a length penalty would give an all-wrong group variance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.maths.groups import Groups


def nonzero_variance(rewards_B: Tensor, groups: Groups) -> Tensor:
    """Keep groups whose rewards differ (DAPO's dynamic sampling); unscored members are ignored."""
    return groups.broadcast(~groups.all_equal(rewards_B, ~torch.isnan(rewards_B)))


def not_truncated(truncated_B: Tensor) -> Tensor:
    """Keep completions that ended by themselves (overlong filtering)."""
    return ~truncated_B
