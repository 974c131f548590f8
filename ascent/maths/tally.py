"""Metrics that survive being cut: a mean travels as (sum, count), an extreme as itself.

Averaging the means of micro-batches is wrong as soon as they differ in size, so nothing here is ever a bare mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ascent.maths import masked


class Mean(NamedTuple):
    total: Tensor
    over: Tensor

    def merge(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.over + other.over)

    def value(self) -> float:
        return float(self.total) / float(self.over) if float(self.over) else float("nan")


class Largest(NamedTuple):
    extreme: Tensor

    def merge(self, other: Largest) -> Largest:
        return Largest(torch.maximum(self.extreme, other.extreme))

    def value(self) -> float:
        return float(self.extreme)


class Smallest(NamedTuple):
    extreme: Tensor

    def merge(self, other: Smallest) -> Smallest:
        return Smallest(torch.minimum(self.extreme, other.extreme))

    def value(self) -> float:
        return float(self.extreme)


Tally = Mean | Largest | Smallest
Metrics = Mapping[str, Tally]


def average(x: Tensor, keep: Tensor) -> Mean:
    """The mean of x (or the share of true, for booleans) over the kept entries, as a (sum, count) pair."""
    x = x.detach()
    x = x.to(torch.float64) if x.dtype == torch.bool else x
    return Mean(masked.total(x, keep), keep.sum())


def largest(x: Tensor, keep: Tensor) -> Largest:
    inf = float("inf")
    return Largest(torch.where(keep, x.detach(), -inf).max() if x.numel() else x.new_tensor(-inf))


def smallest(x: Tensor, keep: Tensor) -> Smallest:
    inf = float("inf")
    return Smallest(torch.where(keep, x.detach(), inf).min() if x.numel() else x.new_tensor(inf))


def merge(pieces: Iterable[Metrics]) -> dict[str, Tally]:
    """Merge the metrics of micro-batches (or ranks) into those of the whole."""
    whole: dict[str, Tally] = {}
    for piece in pieces:
        for name, tally in piece.items():
            whole[name] = whole[name].merge(tally) if name in whole else tally  # type: ignore[arg-type]
    return whole
