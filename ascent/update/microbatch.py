"""The one place where a numerator meets its denominator.

An optimizer step sees many micro-batches on many ranks. Denominators (and every other statistic that couples the batch)
are counted first, over all of them; then each micro-batch's numerators are scaled by the finished counts. Nothing
depends on how the batch was cut. Averaging the means of pieces instead is wrong by tens of percent on ragged batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ascent.losses.loss import Terms
from ascent.maths.metrics import Accumulator, merge


class Step(NamedTuple):
    """The value of an optimizer step's loss, that of each term (unweighted), and the metrics of the whole."""

    value: Tensor
    terms: Mapping[str, Tensor]
    metrics: Mapping[str, Accumulator]


def denominators(pieces: Iterable[Terms]) -> dict[str, Tensor]:
    """Each term's denominator, summed over micro-batches. Sum the result over ranks before using it."""
    totals: dict[str, Tensor] = {}
    for terms in pieces:
        for name, loss in terms.items():
            totals[name] = totals.get(name, torch.zeros_like(loss.denominator)) + loss.denominator.detach()
    return totals


def scaled(terms: Terms, totals: Mapping[str, Tensor], weights: Mapping[str, float], *, ranks: int = 1) -> Tensor:
    """What one micro-batch calls backward on: its share of the step's loss.

    `ranks` undoes the averaging of gradients over data-parallel ranks. A micro-batch in which nothing is trained gives
    0, still attached to the graph, so that every rank joins the backward pass.
    """
    shares = [weights.get(name, 1.0) * loss.numerator / totals[name].clamp(min=1) for name, loss in terms.items()]
    return torch.stack(shares).sum() * ranks


def step_of(pieces: Sequence[Terms], weights: Mapping[str, float]) -> Step:
    """The whole optimizer step at once: what the micro-batches add up to. Differentiable."""
    totals = denominators(pieces)
    values = {
        name: torch.stack([terms[name].numerator for terms in pieces if name in terms]).sum() / total.clamp(min=1)
        for name, total in totals.items()
    }
    whole = torch.stack([weights.get(name, 1.0) * value for name, value in values.items()]).sum()
    metrics = merge(loss.metrics for terms in pieces for loss in terms.values())
    return Step(whole, values, metrics)
