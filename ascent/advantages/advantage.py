"""What an advantage estimator returns. Axes: T flat tokens, B sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from ascent.maths.metrics import Accumulator


class SequenceAdvantage(NamedTuple):
    """One advantage per sequence, the same for each of its tokens."""

    advantages_B: Tensor
    metrics: Mapping[str, Accumulator]


class TokenAdvantage(NamedTuple):
    """One advantage per token, 0 outside the trained ones, and the value targets where there is a critic."""

    advantages_T: Tensor
    returns_T: Tensor | None
    metrics: Mapping[str, Accumulator]
