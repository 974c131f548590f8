"""The `Source` over files: the micro-batches of every step, from a mixture of datasets, resumable to the record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from ascent.data.collate import Batch, add_mismatched, collate_all, two_distinct_prompts
from ascent.data.mix import Mixture, Stream
from ascent.data.packing import PackingStats, packing_stats, split_microbatches
from ascent.data.prepare import Item, PreparedData


class FileSource:
    """`next(step)` returns the micro-batches of one optimizer step, those of all `ranks`.

    A step takes `batch_size` records, across the end of an epoch, so no record is left over. `rewrite`
    can replace the text of a step's items. `packing` holds the packing statistics of the last step, and
    `truncated_mismatched` counts the mismatched sequences of KTO that lost the start of their prompt.
    """

    def __init__(
        self,
        prepared: Sequence[PreparedData],
        *,
        batch_size: int,
        tokens_per_microbatch: int,
        max_tokens: int,
        seed: int,
        shuffle: bool = True,
        weights: Sequence[float] | None = None,
        rewrite: Callable[[Sequence[Item], int], list[Item]] | None = None,
        ranks: int = 1,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}, but a step takes at least 1 record")
        shares = (
            list(weights) if weights is not None else [float(len(each.items)) for each in prepared]
        )
        if len(shares) != len(prepared):
            raise ValueError(
                f"{len(shares)} weights for {len(prepared)} sources; give one for each"
            )
        kinds = sorted({item.kind for each in prepared for item in each.items})
        if len(kinds) != 1:
            raise ValueError(
                f"a mixture of {', '.join(kinds)}; one algorithm learns from records of one kind"
            )
        self.kind = kinds[0]
        with_margins = sorted({item.margin is not None for each in prepared for item in each.items})
        if len(with_margins) > 1:
            raise ValueError(
                f"a mixture of pairs with and without a margin ({', '.join(each.name for each in prepared)}); give one "
                "to every pair or to none, because a missing margin is not a margin of 0"
            )
        self._items = [each.items for each in prepared]
        self._share = shares[0] / math.fsum(shares)
        self._spare = (
            two_distinct_prompts(chain.from_iterable(self._items))
            if self.kind == "unpaired"
            else None
        )
        streams = [
            Stream(each.name, len(each.items), w) for each, w in zip(prepared, shares, strict=True)
        ]
        self.mixture = Mixture(streams, seed=seed, shuffle=shuffle)
        self._batch_size, self._rewrite = batch_size, rewrite
        self._budget = tokens_per_microbatch
        self._max_tokens = max_tokens
        self._ranks = ranks
        self._step: int | None = None
        self.packing: PackingStats | None = None
        self.truncated_mismatched = 0
        _check_largest(self._items, tokens_per_microbatch)

    def next(self, step: int) -> list[Batch]:
        if self._step is not None and step <= self._step:
            raise ValueError(
                f"step {step} was already given (the last was {self._step}); load_state goes back"
            )
        self._step = step
        items = [
            self._items[draw.source][draw.record] for draw in self.mixture.take(self._batch_size)
        ]
        if self._rewrite is not None:
            items = self._rewrite(items, step)
        if self._spare is not None:
            items, truncated = add_mismatched(
                items, max_tokens=min(self._max_tokens, self._budget), spare=self._spare
            )
            self.truncated_mismatched += truncated
        batches = split_microbatches(items, self._budget, ranks=self._ranks)
        self.packing = packing_stats(batches)
        return collate_all(batches)

    def more(self, stats: Mapping[str, Any]) -> list[Batch]:
        """A step over files is one update."""
        return []

    def report(self) -> dict[str, Any]:
        """The learner reports all metrics."""
        return {}

    def refresh(self, weights: Mapping[str, Any]) -> None:
        """Files do not depend on the policy."""

    @property
    def steps_per_epoch(self) -> float:
        """Optimizer steps per pass over the first dataset."""
        return len(self._items[0]) / (self._batch_size * self._share)

    def state(self) -> dict[str, Any]:
        """The position in the data."""
        return {"mixture": self.mixture.state(), "step": self._step, "batch_size": self._batch_size}

    def load_state(self, state: dict[str, Any]) -> None:
        if state["batch_size"] != self._batch_size:
            raise ValueError(
                f"batch_size={self._batch_size}, but the run was saved with {state['batch_size']}; keep it to continue "
                "exactly"
            )
        self.mixture.load_state(state["mixture"])
        self._step = state["step"]


def single_pass(
    items: Sequence[Item],
    *,
    tokens_per_microbatch: int,
    max_tokens: int,
    mismatched: bool = True,
    ranks: int = 1,
) -> list[Batch]:
    """Every item once, in micro-batches, for evaluation. Scoring needs no mismatched sequences."""
    if mismatched and items and items[0].kind == "unpaired":
        items, _ = add_mismatched(items, max_tokens=min(max_tokens, tokens_per_microbatch))
    return collate_all(split_microbatches(items, tokens_per_microbatch, ranks=ranks))


def _check_largest(sources: Sequence[Sequence[Item]], budget: int) -> None:
    """ValueError before the first step where the largest item exceeds the budget."""
    largest = max((item for items in sources for item in items), key=lambda item: item.tokens)
    split_microbatches([largest], budget)
