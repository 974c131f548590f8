"""The processes of a run. Ranks are another way to split a batch: whatever is summed or gathered is over all of them.

Everything that is not expensive is computed by every rank, on the same inputs, so that all ranks take the same
decisions. What is expensive is divided by place and gathered in order. `Ranks` itself is a run of one process, where
every reduction is the identity; `ascent.parallel.distributed.DistributedRanks` is a process group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, get_args

from torch import Tensor

T = TypeVar("T")
R = TypeVar("R")
Layout = Literal["auto", "replicated", "sharded"]


class Ranks:
    """One process. `layout` says how models lie on the ranks: whole on each, divided over them, or as they fit."""

    rank = 0
    count = 1

    def __init__(self, layout: Layout = "auto") -> None:
        if layout not in get_args(Layout):
            raise ValueError(f"layout={layout!r}; use one of {', '.join(get_args(Layout))}")
        self.layout = layout

    @property
    def is_first(self) -> bool:
        """Rank 0 alone writes the run folder, prints and reports to trackers."""
        return self.rank == 0

    def gather(self, own: T, what: str) -> list[T]:
        """The value of every rank, in order. `what` names it in errors about ranks that do not arrive."""
        return [own]

    def reduce_scatter(self, chunks: Tensor, own: Tensor) -> None:
        """`own` becomes this rank's chunk of the sum over ranks. `chunks` holds one chunk for each rank."""
        own.copy_(chunks)

    def all_gather(self, own: Tensor, chunks: Tensor, what: str) -> None:
        """`chunks` becomes the chunks of all ranks, in order."""
        chunks.copy_(own)

    @contextmanager
    def exchanging(self, what: str) -> Iterator[None]:
        """Inside, ranks exchange tensors by themselves, as those of a divided model do; waiting is watched."""
        yield

    def broadcast(self, own: T, what: str) -> T:
        """The value of rank 0."""
        return self.gather(own if self.is_first else None, what)[0]  # type: ignore[return-value]

    def barrier(self, what: str) -> None:
        """Wait for all ranks."""
        self.gather(None, what)

    def sum(self, own: Any, what: str) -> Any:
        """The sum over ranks of a number or of a tensor."""
        if self.count == 1:
            return own
        found = sum(self.gather(own, what))
        return found.to(own.device) if isinstance(found, Tensor) else found

    def part(self, items: Sequence[T]) -> Sequence[T]:
        """This rank's part of a list: neighbors, about as many for each rank."""
        count = len(items)
        return items[count * self.rank // self.count : count * (self.rank + 1) // self.count]

    def concat(self, own: Sequence[T], what: str) -> list[T]:
        """The parts of all ranks as one list."""
        return [each for part in self.gather(own, what) for each in part]

    def places(self, count: int) -> list[int]:
        """The places of this rank in a list: rank, rank + N, and so on; the same number for every rank.

        Where the list is too short, its first place fills up: a model that is divided over ranks runs only if all of
        them run it.
        """
        places = range(self.rank, -(-count // self.count) * self.count, self.count)
        return [place if place < count else 0 for place in places]

    def share(self, items: Sequence[T]) -> list[tuple[T, bool]]:
        """The items at this rank's places, and whether each counts or only fills up."""
        return [
            (items[place], number * self.count + self.rank < len(items))
            for number, place in enumerate(self.places(len(items)))
        ]

    def unshare(self, own: Sequence[R], count: int, what: str) -> list[R]:
        """One value for each of `count` items, from what every rank has for its share of them."""
        gathered = self.gather(own, what)
        return [gathered[place % self.count][place // self.count] for place in range(count)]

    def map(self, function: Callable[[T], R], items: Sequence[T], what: str) -> list[R]:
        """The function's value for every item, each computed by one rank."""
        return self.unshare([function(item) for item, _ in self.share(items)], len(items), what)

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """All ranks run the block; an OSError in one of them is raised in all."""
        own: OSError | None = None
        try:
            yield
        except OSError as error:
            own = error
        failed = [
            (rank, text)
            for rank, text in enumerate(self.gather(own and str(own), what))
            if text is not None
        ]
        if own is not None:
            raise own
        if failed:
            raise OSError(f"rank {failed[0][0]}: {failed[0][1]}")

    def call_on_failure(self, function: Callable[[str], None]) -> None:
        """Have a function called with the message, before this rank exits because of another one."""


SINGLE = Ranks()
