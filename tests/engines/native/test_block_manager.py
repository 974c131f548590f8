"""Pages are handed out once, shared by count, and free again when the last holder lets go."""

from __future__ import annotations

import pytest

from ascent.engines.native.block_manager import BlockManager


def test_page_zero_is_never_handed_out() -> None:
    assert BlockManager(4, 2).take(3) == [1, 2, 3]


def test_a_shared_page_is_free_when_the_last_holder_drops_it() -> None:
    pages = BlockManager(4, 2)
    (page,) = pages.take(1)
    pages.share([page])
    assert (pages.shared, pages.used, pages.free) == (1, 1, 2)
    pages.drop([page])
    assert (pages.shared, pages.used) == (0, 1)
    pages.drop([page])
    assert pages.free == pages.usable == 3


def test_needed_rounds_up() -> None:
    assert [BlockManager(4, 4).needed(tokens) for tokens in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_misuse_is_caught() -> None:
    pages = BlockManager(3, 2)
    with pytest.raises(AssertionError, match="wanted"):
        pages.take(3)
    (page,) = pages.take(1)
    pages.drop([page])
    with pytest.raises(AssertionError, match="free already"):
        pages.drop([page])
    with pytest.raises(AssertionError, match="cannot be shared"):
        pages.share([page])
    with pytest.raises(ValueError, match="1 pages"):
        BlockManager(1, 2)
