"""Which record comes next: one stream out of several sources, by weight, with an exact position.

Each source is passed epoch by epoch, each epoch in its own order: a hash of seed, source and epoch, and no library's
random numbers. Which source is next follows from the weights alone: the one furthest behind its share. So shares hold
at every point of the stream, not only on average, and a position is one number per source.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple


class Stream(NamedTuple):
    """A source of the mixture: its name, how many records it has, its weight."""

    name: str
    size: int
    weight: float = 1.0


class DrawnBatch(NamedTuple):
    """A record's source, its place there, and the epoch of that source (from 0)."""

    source: int
    place: int
    epoch: int


class Mixture:
    """Draws records one by one; `state` and `load_state` are exact."""

    def __init__(self, streams: Sequence[Stream], *, seed: int, shuffle: bool = True) -> None:
        if not streams:
            raise ValueError("a mixture of nothing; give at least one source")
        names = [stream.name for stream in streams]
        if len(set(names)) != len(names):
            raise ValueError(f"sources {', '.join(names)}: the same name twice; add their weights, or name them apart")
        for stream in streams:
            if stream.size < 1:
                raise ValueError(f"source {stream.name!r} has no records; remove it from the mixture")
            if not (stream.weight > 0 and math.isfinite(stream.weight)):
                raise ValueError(f"source {stream.name!r} has weight {stream.weight}; weights are above 0 and finite")
        self.streams = tuple(streams)
        self.seed = seed
        self.shuffle = shuffle
        self._total = math.fsum(stream.weight for stream in streams)
        self._drawn = [0] * len(streams)
        self._orders: dict[int, tuple[int, list[int]]] = {}

    def next(self) -> DrawnBatch:
        source = self._furthest_behind()
        epoch, place = divmod(self._drawn[source], self.streams[source].size)
        self._drawn[source] += 1
        return DrawnBatch(source, self._order(source, epoch)[place], epoch)

    def take(self, count: int) -> list[DrawnBatch]:
        return [self.next() for _ in range(count)]

    @property
    def position(self) -> int:
        """How many records were drawn."""
        return sum(self._drawn)

    @property
    def epochs(self) -> dict[str, float]:
        """How often each source was passed, with the fraction of the running pass."""
        return {s.name: drawn / s.size for s, drawn in zip(self.streams, self._drawn, strict=True)}

    def state(self) -> dict[str, Any]:
        return {"drawn": list(self._drawn), **self._identity()}

    def load_state(self, state: dict[str, Any]) -> None:
        for name, value in self._identity().items():
            if state[name] != value:
                raise ValueError(
                    f"the saved position belongs to another mixture: {name} was {state[name]!r} and is {value!r}; "
                    "resume with the data, weights and seed of the run, or start a new run"
                )
        self._drawn = list(state["drawn"])

    def _identity(self) -> dict[str, Any]:
        """Names are left out: a file that moved is still the same data."""
        shares = [[stream.size, stream.weight] for stream in self.streams]
        return {"sizes and weights": shares, "seed": self.seed, "shuffle": self.shuffle}

    def _furthest_behind(self) -> int:
        """The first source for which share * (drawn so far + 1) - its own draws is largest."""
        nth = self.position + 1
        behind = [s.weight / self._total * nth - drawn for s, drawn in zip(self.streams, self._drawn, strict=True)]
        return max(range(len(behind)), key=behind.__getitem__)

    def _order(self, source: int, epoch: int) -> list[int]:
        held, order = self._orders.get(source, (-1, []))
        if held != epoch:
            order = order_of(
                self.streams[source].size, source=source, seed=self.seed, epoch=epoch, shuffle=self.shuffle
            )
            self._orders[source] = (epoch, order)
        return order


def order_of(size: int, *, source: int, seed: int, epoch: int, shuffle: bool = True) -> list[int]:
    """The order of one epoch: places sorted by a hash, or as they lie in the file."""
    if not shuffle:
        return list(range(size))
    key = f"{seed}/{source}/{epoch}/".encode()
    return sorted(range(size), key=lambda place: hashlib.blake2b(key + str(place).encode(), digest_size=8).digest())
