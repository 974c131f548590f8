"""Filters as pure predicates: which sequences stay in the loss. True means keep.

Axes: B sequences. Filters look at the reward that is trained on, before any shaping, and at how a completion ended: a
length penalty makes an all-wrong group look informative when it is not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.maths.groups import Groups


def nonzero_variance(rewards_B: Tensor, groups: Groups) -> Tensor:
    """Keep groups whose rewards differ (DAPO's dynamic sampling); unscored members do not vote."""
    return groups.broadcast(~groups.spans_nothing(rewards_B, ~torch.isnan(rewards_B)))


def not_truncated(truncated_B: Tensor) -> Tensor:
    """Keep completions that ended by themselves (overlong filtering)."""
    return ~truncated_B
