"""Filters as pure predicates: which sequences stay in the loss. True means keep.

Axes: B sequences. Filters look at correctness and at how a completion ended, never at the shaped reward: a length
penalty makes an all-wrong group look informative when it is not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.maths.groups import Groups


def varied(correct_B: Tensor, groups: Groups) -> Tensor:
    """Keep groups that are neither all right nor all wrong (DAPO's dynamic sampling); unscored members do not vote."""
    known_B = ~torch.isnan(correct_B)
    return groups.spread(~groups.spans_nothing(correct_B, known_B))


def finished(truncated_B: Tensor) -> Tensor:
    """Keep completions that ended by themselves (overlong filtering)."""
    return ~truncated_B


def scorable(rewards_B: Tensor) -> Tensor:
    """Keep completions whose reward is known (error mask)."""
    return ~torch.isnan(rewards_B)
