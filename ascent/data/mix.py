"""The order of records: one stream out of several datasets, by weight, with an exact position.

Every epoch of a dataset is shuffled by a hash of seed, dataset and epoch. The next dataset is the one furthest behind
its share, so shares hold at every point of the stream and not only on average. A position is one number per dataset,
and it is one in a dataset of any size: that many records of its epochs have been drawn.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple


class Stream(NamedTuple):
    """One dataset of the mixture: its name, its number of records, its weight."""

    name: str
    size: int
    weight: float = 1.0


class Draw(NamedTuple):
    """One record: its dataset, its index there, and the epoch of that dataset (from 0)."""

    source: int
    record: int
    epoch: int


class Mixture:
    """Draws records one by one; `state` and `load_state` are exact."""

    def __init__(self, streams: Sequence[Stream], *, seed: int, shuffle: bool = True) -> None:
        if not streams:
            raise ValueError("an empty mixture; give at least one source")
        names = [stream.name for stream in streams]
        if len(set(names)) != len(names):
            raise ValueError(
                f"sources {', '.join(names)}: the same name twice; add their weights, or rename one"
            )
        for stream in streams:
            if stream.size < 1:
                raise ValueError(
                    f"source {stream.name!r} has no records; remove it from the mixture"
                )
            if not (stream.weight > 0 and math.isfinite(stream.weight)):
                raise ValueError(
                    f"source {stream.name!r} has weight {stream.weight}; weights are above 0 and finite"
                )
        self.streams = tuple(streams)
        self.seed = seed
        self.shuffle = shuffle
        self._total = math.fsum(stream.weight for stream in streams)
        self._drawn = [0] * len(streams)
        self._orders: dict[int, tuple[int, list[int]]] = {}

    def next(self) -> Draw:
        source = self._furthest_behind()
        epoch, index = divmod(self._drawn[source], self.streams[source].size)
        self._drawn[source] += 1
        return Draw(source, self._order(source, epoch)[index], epoch)

    def take(self, count: int) -> list[Draw]:
        return [self.next() for _ in range(count)]

    @property
    def position(self) -> int:
        """Records drawn so far."""
        return sum(self._drawn)

    @property
    def epochs(self) -> dict[str, float]:
        """Epochs of each dataset, as a fraction."""
        return {s.name: drawn / s.size for s, drawn in zip(self.streams, self._drawn, strict=True)}

    def state(self) -> dict[str, Any]:
        """Without names: a file that was moved is the same dataset."""
        streams = [[stream.size, stream.weight] for stream in self.streams]
        return {
            "drawn": list(self._drawn),
            "sizes and weights": streams,
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """A dataset may have grown or shrunk since: its epochs are counted in its size of now."""
        was, now = _order_of(state), _order_of(self.state())
        for name, value in now.items():
            if was[name] != value:
                raise ValueError(
                    f"the saved position belongs to another mixture: {name} was {was[name]!r} and is {value!r}; "
                    "resume with the sources, weights and seed of the run, or start a new run"
                )
        self._drawn = list(state["drawn"])

    def _furthest_behind(self) -> int:
        """The first dataset with the largest share * (position + 1) - its own draws."""
        nth = self.position + 1
        behind = [
            s.weight / self._total * nth - drawn
            for s, drawn in zip(self.streams, self._drawn, strict=True)
        ]
        return max(range(len(behind)), key=behind.__getitem__)

    def _order(self, source: int, epoch: int) -> list[int]:
        cached, order = self._orders.get(source, (-1, []))
        if cached != epoch:
            order = epoch_order(
                self.streams[source].size,
                source=source,
                seed=self.seed,
                epoch=epoch,
                shuffle=self.shuffle,
            )
            self._orders[source] = (epoch, order)
        return order


def _order_of(state: dict[str, Any]) -> dict[str, Any]:
    """What the order of a mixture depends on besides its sizes. The weight of a single dataset says nothing."""
    weights = [weight for _, weight in state["sizes and weights"]]
    shares = [weight / math.fsum(weights) for weight in weights]
    return {"shares": shares, "seed": state["seed"], "shuffle": state["shuffle"]}


def epoch_order(
    size: int, *, source: int, seed: int, epoch: int, shuffle: bool = True
) -> list[int]:
    """The indices of one epoch, sorted by a hash; in file order without `shuffle`."""
    if not shuffle:
        return list(range(size))
    key = f"{seed}/{source}/{epoch}/".encode()
    return sorted(
        range(size),
        key=lambda index: hashlib.blake2b(key + str(index).encode(), digest_size=8).digest(),
    )
