"""Blocks are allocated once, shared by reference count, and free again at count 0."""

from __future__ import annotations

import pytest

from ascent.engines.native.block_manager import BlockManager


def test_block_zero_is_never_handed_out() -> None:
    assert BlockManager(4, 2).allocate(3) == [1, 2, 3]


def test_a_shared_block_is_free_at_its_last_reference() -> None:
    blocks = BlockManager(4, 2)
    (block,) = blocks.allocate(1)
    blocks.share([block])
    assert (blocks.num_shared, blocks.num_used, blocks.num_free) == (1, 1, 2)
    blocks.free([block])
    assert (blocks.num_shared, blocks.num_used) == (0, 1)
    blocks.free([block])
    assert blocks.num_free == blocks.num_usable == 3


def test_blocks_needed_rounds_up() -> None:
    assert [BlockManager(4, 4).blocks_needed(tokens) for tokens in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_misuse_is_caught() -> None:
    blocks = BlockManager(3, 2)
    with pytest.raises(AssertionError, match="requested"):
        blocks.allocate(3)
    (block,) = blocks.allocate(1)
    blocks.free([block])
    with pytest.raises(AssertionError, match="free already"):
        blocks.free([block])
    with pytest.raises(AssertionError, match="cannot be shared"):
        blocks.share([block])
    with pytest.raises(ValueError, match="1 blocks"):
        BlockManager(1, 2)
