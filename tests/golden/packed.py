"""Between a peer's padded rectangles and our packed tokens, and from terms to the scalar a peer calls backward on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ascent.losses.loss import Loss, Terms
from ascent.maths.packing import pack, packed_segments, unpack
from ascent.update.microbatch import denominators, scaled

NO_GUARD = float("inf")


class Rows:
    """A padded batch on our flat axis: each row up to its last counted token and one token of padding behind it.

    Holes and that one token are packed but not trained, so a function that forgets the mask reads what it must not. A
    fully masked row becomes an empty segment.
    """

    def __init__(self, mask_BL: Tensor) -> None:
        self.mask_BL = mask_BL
        counted_BL = mask_BL.flip(1).cumsum(1).flip(1) > 0
        self.keep_BL = counted_BL | (counted_BL.roll(1, 1) & mask_BL.any(1, keepdim=True))
        self.segments = packed_segments(self.keep_BL)
        self.loss_mask_T = pack(mask_BL, self.keep_BL)
        self.empty_B = ~mask_BL.any(1)

    @property
    def width(self) -> int:
        return self.mask_BL.shape[1]

    @property
    def count(self) -> int:
        return self.mask_BL.shape[0]

    def pack(self, x: Tensor) -> Tensor:
        """Per-token numbers, from a rectangle or from one number per row."""
        if x.ndim == 2 and x.shape[1] == 1:
            x = x.squeeze(1)
        return self.segments.broadcast(x) if x.ndim == 1 else pack(x, self.keep_BL)

    def unpack(self, x_T: Tensor, fill: float = 0.0) -> Tensor:
        return unpack(x_T, self.keep_BL, fill)

    def known(self, **padded: Tensor) -> dict[str, Any]:
        """What our composed functions take, from padded tensors under our names."""
        packed = {name: self.pack(x) for name, x in padded.items()}
        return {"segments": self.segments, "loss_mask_T": self.loss_mask_T, **packed}

    def without(self, drop_B: Tensor) -> Rows:
        """The same rows with some of them fully masked."""
        return Rows(self.mask_BL & ~drop_B[:, None])


def shares_of_rows(rows: Rows, marks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For each row, the share of its trained tokens that carry a mark."""
    return {
        name: rows.segments.mean(mark_T.double(), rows.loss_mask_T)
        for name, mark_T in marks.items()
    }


def gradient(loss: Tensor, leaf: Tensor) -> Tensor:
    """d loss / d leaf, 0 where the loss does not depend on it."""
    (slope,) = torch.autograd.grad(loss, leaf, retain_graph=True, allow_unused=True)
    return torch.zeros_like(leaf) if slope is None else slope


def reduced(
    terms: Terms,
    weights: Mapping[str, float] | None = None,
    *,
    count: float | None = None,
    ranks: int = 1,
) -> Tensor:
    """The weighted sum of the terms, over our own denominators or over one global `count` that replaces them."""
    totals = denominators([terms])
    if count is not None:
        totals = {name: torch.full_like(total, count) for name, total in totals.items()}
    return scaled(terms, totals, weights or {}, ranks=ranks)


def mean_of(loss: Loss) -> Tensor:
    """The value of a single term."""
    return reduced({"loss": loss})
