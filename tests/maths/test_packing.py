"""Padded to packed and back."""

from __future__ import annotations

import pytest
import torch

from ascent.maths.packing import pack, packed_segments, unpack

KEEP = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])


def test_there_and_back() -> None:
    padded = torch.arange(9.0).reshape(3, 3)
    packed = pack(padded, KEEP)
    assert packed.tolist() == [0, 1, 6, 8]
    assert packed_segments(KEEP).lengths_B.tolist() == [2, 0, 2]
    assert unpack(packed, KEEP, fill=-1).tolist() == [[0, 1, -1], [-1, -1, -1], [6, -1, 8]]


def test_trailing_axes_travel_along() -> None:
    padded = torch.arange(18.0).reshape(3, 3, 2)
    torch.testing.assert_close(
        unpack(pack(padded, KEEP), KEEP), torch.where(KEEP[..., None], padded, 0)
    )


def test_mismatches_are_refused() -> None:
    with pytest.raises(ValueError, match="mask"):
        pack(torch.zeros(2, 3), KEEP)
    with pytest.raises(ValueError, match="keeps 4"):
        unpack(torch.zeros(3), KEEP)
