"""Conversion between padded tensors (B, L) and packed tokens (T), for tests and other libraries."""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.maths.segments import Segments


def pack(padded_BL: Tensor, keep_BL: Tensor) -> Tensor:
    """The kept entries of a padded tensor, row after row."""
    if padded_BL.shape[:2] != keep_BL.shape:
        raise ValueError(
            f"a tensor of shape {tuple(padded_BL.shape)} with a mask of shape {tuple(keep_BL.shape)}"
        )
    return padded_BL[keep_BL]


def packed_segments(keep_BL: Tensor) -> Segments:
    """The segments that `pack` with the same mask produces, one per row."""
    return Segments.from_lengths(keep_BL.sum(1))


def unpack(packed_T: Tensor, keep_BL: Tensor, fill: float = 0.0) -> Tensor:
    """The inverse of `pack`: a padded tensor with `fill` where nothing was kept."""
    if packed_T.shape[0] != int(keep_BL.sum()):
        raise ValueError(
            f"{packed_T.shape[0]} packed entries for a mask that keeps {int(keep_BL.sum())}"
        )
    padded = torch.full(
        (*keep_BL.shape, *packed_T.shape[1:]), fill, dtype=packed_T.dtype, device=packed_T.device
    )
    return padded.masked_scatter(
        keep_BL.reshape(*keep_BL.shape, *[1] * (packed_T.ndim - 1)), packed_T
    )
