"""What losses return. Axes are the caller's: tokens, sequences, pairs or prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from ascent.maths import masked
from ascent.maths.metrics import Metrics


class ItemLosses(NamedTuple):
    """One loss per item (token, sequence, pair or prompt), which items count, and what to log about them."""

    losses: Tensor
    counted: Tensor
    metrics: Metrics


class Loss(NamedTuple):
    """One term on one micro-batch. The term's value is (sum of numerators) / max(1, sum of denominators).

    Both sums run over all micro-batches and ranks of an optimizer step, so the split changes nothing. Only
    `ascent.update.microbatch` divides.
    """

    numerator: Tensor
    denominator: Tensor
    metrics: Metrics


Terms = Mapping[str, Loss]


def summed(items: ItemLosses) -> Loss:
    """The mean over counted items, as a numerator and a denominator."""
    return Loss(
        masked.total(items.losses, items.counted),
        items.counted.sum().to(items.losses.dtype),
        items.metrics,
    )
