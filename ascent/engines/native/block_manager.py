"""Reference counts of the KV cache blocks. Sequences may share a block; it is free again at count 0.

Block 0 is never allocated: padding rows write there.
"""

from __future__ import annotations

from collections.abc import Iterable


class BlockManager:
    """Every allocation and every share is freed exactly once; anything else is a bug and asserts."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2 or block_size < 1:
            raise ValueError(
                f"{num_blocks} blocks of {block_size} tokens: give at least 2 blocks (the first is scratch) of 1 token"
            )
        self.num_blocks, self.block_size = num_blocks, block_size
        self._ref_counts = [0] * num_blocks
        self._free = list(range(num_blocks - 1, 0, -1))  # the lowest id is allocated first
        self.num_shared = 0  # blocks with more than one reference
        self.highest = 0  # block that was allocated since `reset`

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_usable(self) -> int:
        return self.num_blocks - 1

    @property
    def num_used(self) -> int:
        return self.num_usable - self.num_free

    def blocks_needed(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def allocate(self, count: int) -> list[int]:
        assert count <= self.num_free, (
            f"{count} blocks requested, {self.num_free} free: the scheduler must check first"
        )
        block_ids = [self._free.pop() for _ in range(count)]
        for block_id in block_ids:
            assert self._ref_counts[block_id] == 0, f"block {block_id} is both free and referenced"
            self._ref_counts[block_id] = 1
        self.highest = max(self.highest, *block_ids) if block_ids else self.highest
        return block_ids

    def reset(self) -> None:
        """With no block in use, begin again with the lowest."""
        assert not self.num_used, f"{self.num_used} blocks are in use"
        self._free.sort(reverse=True)
        self.highest = 0

    def share(self, block_ids: Iterable[int]) -> None:
        """Add a reference to each block."""
        for block_id in block_ids:
            assert self._ref_counts[block_id] > 0, f"block {block_id} is free and cannot be shared"
            self._ref_counts[block_id] += 1
            self.num_shared += self._ref_counts[block_id] == 2

    def free(self, block_ids: Iterable[int]) -> None:
        """Remove a reference from each block."""
        for block_id in block_ids:
            assert self._ref_counts[block_id] > 0, f"block {block_id} is free already"
            self._ref_counts[block_id] -= 1
            self.num_shared -= self._ref_counts[block_id] == 1
            if self._ref_counts[block_id] == 0:
                self._free.append(block_id)
