"""Cut the items of one optimizer step into micro-batches under a token budget, of nearly equal size.

Longest first, each into the emptiest micro-batch (Graham's rule), with as few micro-batches as this rule can fill.
Items are never cut apart, so pairs and rankings stay whole. Results do not depend on the cut; only time and memory do.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from ascent.data.prepare import Item


class Share(NamedTuple):
    """Real tokens, computed tokens, and what padding every sequence to its micro-batch's longest would compute."""

    real: int
    computed: int
    padded: int

    @property
    def packed(self) -> float:
        return self.real / self.computed

    @property
    def rectangle(self) -> float:
        return self.real / self.padded


def cut(items: Sequence[Item], budget: int, *, ranks: int = 1) -> list[list[Item]]:
    """Micro-batches, a multiple of `ranks` of them and none empty; rank r takes every ranks-th, from r on."""
    if len(items) < ranks:
        raise ValueError(f"{len(items)} records for {ranks} ranks; each rank needs at least one: raise data.batch_size")
    for item in items:
        if item.tokens > budget:
            raise ValueError(
                f"one {item.kind} record has {item.tokens} tokens, more than the {budget} of a micro-batch; its "
                "sequences go through the model together: raise update.tokens_per_microbatch or lower data.max_tokens"
            )
    total = sum(item.tokens for item in items)
    count = _up(max(1, -(-total // budget)), ranks)
    while count < len(items):
        bins = _spread(items, count)
        if max(sum(items[place].tokens for place in places) for places in bins) <= budget:
            return [[items[place] for place in places] for places in bins]
        count += ranks
    if count == len(items) or ranks == 1:
        return [[item] for item in items]
    # More micro-batches than records and still a multiple of the ranks is impossible without empty ones.
    raise ValueError(
        f"{len(items)} records do not fit into a multiple of {ranks} micro-batches of {budget} tokens; "
        "raise update.tokens_per_microbatch, or make data.batch_size a multiple of the ranks"
    )


def _spread(items: Sequence[Item], count: int) -> list[list[int]]:
    """Places of items in `count` bins; inside a bin they keep their order."""
    bins: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for place in sorted(range(len(items)), key=lambda place: (-items[place].tokens, place)):
        load, number = heapq.heappop(heap)
        bins[number].append(place)
        heapq.heappush(heap, (load + items[place].tokens, number))
    return [sorted(places) for places in bins]


def share(batches: Sequence[Sequence[Item]], *, multiple: int = 1) -> Share:
    """What the cut computes; `multiple` is the tile to which a runner rounds a micro-batch's tokens up."""
    lengths = [[len(sequence) for item in batch for sequence in item.sequences] for batch in batches]
    return Share(
        real=sum(map(sum, lengths)),
        computed=sum(_up(sum(each), multiple) for each in lengths),
        padded=sum(len(each) * max(each) for each in lengths),
    )


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
