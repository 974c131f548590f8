"""Split the items of one optimizer step into micro-batches of nearly equal size under a token budget.

Longest first, each into the emptiest micro-batch (Graham's rule), with as few micro-batches as this rule allows. Items
are never split. Results do not depend on the split; only time and memory do.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

from ascent.data.prepare import Item


class Sized(Protocol):
    """What the split reads of an item."""

    @property
    def kind(self) -> str: ...

    @property
    def tokens(self) -> int: ...


S = TypeVar("S", bound=Sized)


class PackingStats(NamedTuple):
    """Real tokens, computed tokens, and the tokens that padding to the longest sequence would compute."""

    real: int
    computed: int
    padded: int

    @property
    def efficiency(self) -> float:
        return self.real / self.computed

    @property
    def padded_efficiency(self) -> float:
        return self.real / self.padded


def split_microbatches(items: Sequence[S], budget: int, *, ranks: int = 1) -> list[list[S]]:
    """Micro-batches, none empty. Their number is a multiple of `ranks`, unless each is a single item."""
    for item in items:
        if item.tokens > budget:
            raise ValueError(
                f"one {item.kind} record has {item.tokens} tokens, more than the {budget} of a micro-batch; its "
                "sequences go through the model together: raise update.tokens_per_microbatch or lower data.max_tokens"
            )
    total = sum(item.tokens for item in items)
    count = _round_up(max(1, -(-total // budget)), ranks)
    while count < len(items):
        bins = _assign(items, count)
        if max(sum(items[index].tokens for index in indices) for indices in bins) <= budget:
            return [[items[index] for index in indices] for indices in bins]
        count += ranks
    return [[item] for item in items]


def _assign(items: Sequence[Sized], count: int) -> list[list[int]]:
    """Indices of items in `count` bins, each bin in the order of the items."""
    bins: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for index in sorted(range(len(items)), key=lambda index: (-items[index].tokens, index)):
        load, number = heapq.heappop(heap)
        bins[number].append(index)
        heapq.heappush(heap, (load + items[index].tokens, number))
    return [sorted(indices) for indices in bins]


def packing_stats(batches: Sequence[Sequence[Item]], *, multiple: int = 1) -> PackingStats:
    """`multiple` is the tile size to which the tokens of a micro-batch are rounded up."""
    lengths = [
        [len(sequence) for item in batch for sequence in item.sequences] for batch in batches
    ]
    return PackingStats(
        real=sum(map(sum, lengths)),
        computed=sum(_round_up(sum(each), multiple) for each in lengths),
        padded=sum(len(each) * max(each) for each in lengths),
    )


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
