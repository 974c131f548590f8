"""Metric accumulators that merge exactly over micro-batches and ranks: a mean is a (sum, count) pair.

Averaging the means of micro-batches is wrong as soon as they differ in size.
"""

from __future__ import annotations

import math
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


class Sum(NamedTuple):
    """A count: of several updates, the count of all."""

    total: Tensor

    def merge(self, other: Sum) -> Sum:
        return Sum(self.total + other.total)

    def value(self) -> float:
        return float(self.total)


class Std(NamedTuple):
    """A standard deviation (over n), in float64 because squares near a large mean cancel in float32."""

    total: Tensor
    squares: Tensor
    over: Tensor

    def merge(self, other: Std) -> Std:
        return Std(self.total + other.total, self.squares + other.squares, self.over + other.over)

    def variance(self) -> float:
        count = float(self.over)
        return (
            max(float(self.squares) / count - (float(self.total) / count) ** 2, 0.0)
            if count
            else float("nan")
        )

    def value(self) -> float:
        return math.sqrt(self.variance())


class ExplainedVariance(NamedTuple):
    """The share of the targets' variance that a critic explains: 1 - Var(target - value) / Var(target)."""

    errors: Std
    targets: Std

    def merge(self, other: ExplainedVariance) -> ExplainedVariance:
        return ExplainedVariance(self.errors.merge(other.errors), self.targets.merge(other.targets))

    def value(self) -> float:
        """NaN where all targets are equal."""
        total = self.targets.variance()
        return 1 - self.errors.variance() / total if total > 0 else float("nan")


class EffectiveSampleFraction(NamedTuple):
    """The effective sample size of n weights as a share of n: (sum w)^2 / (n * sum w^2), 1 where all are equal."""

    weights: Std

    def merge(self, other: EffectiveSampleFraction) -> EffectiveSampleFraction:
        return EffectiveSampleFraction(self.weights.merge(other.weights))

    def value(self) -> float:
        over = float(self.weights.over) * float(self.weights.squares)
        return float(self.weights.total) ** 2 / over if over else float("nan")


class Max(NamedTuple):
    extreme: Tensor

    def merge(self, other: Max) -> Max:
        return Max(torch.maximum(self.extreme, other.extreme))

    def value(self) -> float:
        """NaN of no entries."""
        found = float(self.extreme)
        return math.nan if found == -math.inf else found


class Min(NamedTuple):
    extreme: Tensor

    def merge(self, other: Min) -> Min:
        return Min(torch.minimum(self.extreme, other.extreme))

    def value(self) -> float:
        """NaN of no entries."""
        found = float(self.extreme)
        return math.nan if found == math.inf else found


Accumulator = Mean | Sum | Std | ExplainedVariance | EffectiveSampleFraction | Max | Min
Metrics = Mapping[str, Accumulator]


def single(value: Tensor | float) -> Mean:
    """One number as the mean of itself."""
    value = (
        value.detach() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
    )
    return Mean(value, torch.ones((), device=value.device))


def mean_of(x: Tensor, keep: Tensor) -> Mean:
    """The mean of x (or the share of true, for booleans) over the kept entries, as a (sum, count) pair."""
    x = x.detach()
    x = _wide(x) if x.dtype == torch.bool else x
    keep = keep.to(x.device)
    return Mean(masked.total(x, keep), keep.sum())


def std_of(x: Tensor, keep: Tensor) -> Std:
    """The standard deviation of x over the kept entries, as (sum, sum of squares, count)."""
    wide = _wide(x.detach())
    keep = keep.to(wide.device)
    return Std(masked.total(wide, keep), masked.total(wide**2, keep), keep.sum())


def _wide(x: Tensor) -> Tensor:
    """float64, which the GPU of a Mac does not have."""
    return (x.cpu() if x.device.type == "mps" else x).to(torch.float64)


def max_of(x: Tensor, keep: Tensor) -> Max:
    inf = float("inf")
    return Max(torch.where(keep, x.detach(), -inf).max() if x.numel() else x.new_tensor(-inf))


def min_of(x: Tensor, keep: Tensor) -> Min:
    inf = float("inf")
    return Min(torch.where(keep, x.detach(), inf).min() if x.numel() else x.new_tensor(inf))


def merge(pieces: Iterable[Metrics]) -> dict[str, Accumulator]:
    """The metrics of several micro-batches or ranks as one."""
    merged: dict[str, Accumulator] = {}
    for piece in pieces:
        for name, metric in piece.items():
            merged[name] = merged[name].merge(metric) if name in merged else metric  # type: ignore[arg-type]
    return merged
