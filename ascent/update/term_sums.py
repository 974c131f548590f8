"""The sums of an optimizer step: numerators, denominators and metrics of its loss terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from ascent.losses.loss import Loss, Terms
from ascent.maths.metrics import Accumulator, Mean, merge, single
from ascent.parallel.ranks import Ranks

T = TypeVar("T")
# Terms that are not logged as loss/<term>.
LOSS_NAMES = {"policy": "policy/loss", "value_loss": "critic/loss"}


class TermSums:
    """Numerators, denominators and metrics of an optimizer step, summed over its micro-batches."""

    def __init__(self, totals: Mapping[str, Tensor], weights: Mapping[str, float]) -> None:
        self._totals, self._weights = totals, weights
        self._terms: dict[str, Loss] = {}

    def add(self, terms: Terms, *, counts: bool = True) -> None:
        """Add a micro-batch, unless it only fills up this rank's share."""
        for name, loss in terms.items() if counts else ():
            before = self._terms.get(name)
            numerator, denominator = loss.numerator.detach(), loss.denominator.detach()
            if before is None:
                self._terms[name] = Loss(numerator, denominator, loss.metrics)
            else:
                metrics = merge([before.metrics, loss.metrics])
                self._terms[name] = Loss(
                    before.numerator + numerator, before.denominator + denominator, metrics
                )

    def gather(self, ranks: Ranks, beside: T) -> list[T]:
        """From here on the sums are over all ranks. Returns what every rank sends `beside` them."""
        gathered, self._terms = ranks.gather((self._terms, beside), "the losses"), {}
        for terms, _ in gathered:
            self.add(terms)
        return [each for _, each in gathered]

    def merge(self, other: TermSums) -> None:
        """Add the sums of other terms, or of other micro-batches."""
        self.add(other._terms)

    def check(self) -> None:
        """A denominator must not depend on model outputs: it is counted before they are known."""
        for name, loss in self._terms.items():
            counted = self._totals[name].to(loss.denominator)
            close = torch.isclose(loss.denominator, counted, rtol=1e-4)
            assert bool(close), (
                f"term {name}: denominator {loss.denominator} was counted as {counted} beforehand"
            )

    def metrics(self) -> dict[str, Accumulator]:
        """The metrics of the terms, the value of each term, and their weighted sum."""
        found = merge(loss.metrics for loss in self._terms.values())
        values = []
        for name, loss in self._terms.items():
            total = self._totals[name]
            found[LOSS_NAMES.get(name, f"loss/{name}")] = Mean(loss.numerator, total.clamp(min=1))
            found[f"denominator/{name}"] = single(total)
            values.append(self._weights.get(name, 1.0) * loss.numerator / total.clamp(min=1))
        found["loss/total"] = single(torch.stack(values).sum())
        return found
