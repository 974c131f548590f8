"""The pages of the key/value pool, by number. Several sequences may hold one page; it is free when the last lets go.

Page 0 is never handed out: rows that only fill a batch up write there.
"""

from __future__ import annotations

from collections.abc import Iterable


class BlockManager:
    """Counts who holds what. Whoever takes or shares a page drops it once; anything else is a bug and stops here."""

    def __init__(self, count: int, size: int) -> None:
        if count < 2 or size < 1:
            raise ValueError(f"{count} pages of {size} tokens: give at least 2 pages (the first is scratch) of 1 token")
        self.count, self.size = count, size
        self._holders = [0] * count
        self._free = list(range(count - 1, 0, -1))  # the lowest number is taken first
        self.shared = 0  # pages that more than one sequence holds

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def usable(self) -> int:
        return self.count - 1

    @property
    def used(self) -> int:
        return self.usable - self.free

    def needed(self, tokens: int) -> int:
        """How many pages that many tokens fill."""
        return -(-tokens // self.size)

    def holders(self, page: int) -> int:
        return self._holders[page]

    def take(self, count: int) -> list[int]:
        assert count <= self.free, f"{count} pages wanted, {self.free} free: the scheduler must ask first"
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            assert self._holders[page] == 0, f"page {page} was free and held"
            self._holders[page] = 1
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """One more holder of each."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is free and cannot be shared"
            self._holders[page] += 1
            self.shared += self._holders[page] == 2

    def drop(self, pages: Iterable[int]) -> None:
        """One holder less of each; what nobody holds is free again."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is free already"
            self._holders[page] -= 1
            self.shared -= self._holders[page] == 1
            if self._holders[page] == 0:
                self._free.append(page)
