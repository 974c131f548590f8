"""What surrounds a step on a CPU."""

from __future__ import annotations

import numpy as np

from ascent.engines.native.host import cuts


def test_rows_in_order_are_cut_where_padding_costs_more_than_a_second_block() -> None:
    lengths = np.array([100, 40, 90, 20, 20, 10])
    # from row 3 on 20 suffice, padded to 32: (112 - 32) * 3 numbers a width are saved
    assert cuts(lengths, width=250) == [(0, 3, 112), (3, 6, 32)]
    assert cuts(lengths, width=200) == [(0, 6, 112)]
    assert cuts(lengths[::-1], width=10_000) == [(0, 6, 112)]  # the longest is last: nothing to gain
    assert cuts(np.array([7, 7]), width=10_000) == [(0, 2, 16)]
