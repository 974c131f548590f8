"""Where numerators are divided by denominators.

Denominators are summed over all micro-batches and ranks of an optimizer step first; then each micro-batch's numerators
are divided by the totals, so the split changes nothing. Averaging the means of micro-batches instead is wrong by tens
of percent on ragged batches.
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
            totals[name] = (
                totals.get(name, torch.zeros_like(loss.denominator)) + loss.denominator.detach()
            )
    return totals


def total(ranks: Iterable[Mapping[str, Tensor]], device: torch.device) -> dict[str, Tensor]:
    """The denominators of all ranks as one. A rank may lack a term that none of its micro-batches has."""
    found: dict[str, Tensor] = {}
    for own in ranks:
        for name, denominator in own.items():
            moved = denominator.to(device)
            found[name] = found[name] + moved if name in found else moved
    return found


def scaled(
    terms: Terms, totals: Mapping[str, Tensor], weights: Mapping[str, float], *, ranks: int = 1
) -> Tensor:
    """One micro-batch's share of the step's loss, to call backward on.

    `ranks` undoes the averaging of gradients over data-parallel ranks. A micro-batch without trained tokens gives 0,
    attached to the graph, so that every rank joins the backward pass.
    """
    shares = [
        weights.get(name, 1.0) * loss.numerator / totals[name].clamp(min=1)
        for name, loss in terms.items()
    ]
    return torch.stack(shares).sum() * ranks


def step_of(pieces: Sequence[Terms], weights: Mapping[str, float]) -> Step:
    """The sum over the micro-batches of an optimizer step. Differentiable."""
    totals = denominators(pieces)
    values = {
        name: torch.stack([terms[name].numerator for terms in pieces if name in terms]).sum()
        / total.clamp(min=1)
        for name, total in totals.items()
    }
    value = torch.stack([weights.get(name, 1.0) * each for name, each in values.items()]).sum()
    metrics = merge(loss.metrics for terms in pieces for loss in terms.values())
    return Step(value, values, metrics)
