"""How a list is divided over ranks, and that one process gets all of it unchanged."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ascent.parallel.ranks import SINGLE, Ranks

COUNTS, LENGTHS = st.integers(1, 9), st.integers(1, 40)


class Member(Ranks):
    """A rank that is only asked for its places."""

    def __init__(self, rank: int, count: int) -> None:
        super().__init__()
        self.rank, self.count = rank, count


@given(COUNTS, LENGTHS)
def test_shares_are_equal_in_number_and_every_item_counts_once(count: int, length: int) -> None:
    shares = [Member(rank, count).share(range(length)) for rank in range(count)]
    assert len({len(share) for share in shares}) == 1
    assert sorted(item for share in shares for item, counts in share if counts) == list(
        range(length)
    )
    assert all(item == 0 for share in shares for item, counts in share if not counts)


@given(COUNTS, st.integers(0, 40))
def test_parts_are_neighbors_and_differ_by_at_most_one(count: int, length: int) -> None:
    parts = [list(Member(rank, count).part(range(length))) for rank in range(count)]
    assert [item for part in parts for item in part] == list(range(length))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_one_process_gets_back_what_it_gives() -> None:
    own = torch.tensor([1.0, 2.0])
    assert SINGLE.is_first and SINGLE.count == 1
    assert (
        SINGLE.gather(own, "x")[0] is own
        and SINGLE.sum(own, "x") is own
        and SINGLE.broadcast(own, "x") is own
    )
    assert SINGLE.map(lambda item: item + 1, [1, 2, 3], "x") == [2, 3, 4]
    assert SINGLE.share("ab") == [("a", True), ("b", True)]
    found = torch.zeros(2)
    SINGLE.reduce_scatter(own, found)
    assert torch.equal(found, own)
    with pytest.raises(OSError, match="full"), SINGLE.together("x"):
        raise OSError("full")
