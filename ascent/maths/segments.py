"""One flat token axis, divided into segments: the layout of every batch.

Axes: T flat tokens, B segments (sequences). Lengths (3, 0, 2) put tokens 0-2 in segment 0, nothing in segment 1 and
tokens 3-4 in segment 2; `ids_T` is then [0, 0, 0, 2, 2]. There is no padding, and an empty segment is legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Segments:
    """Where each sequence lies on the flat token axis. Build it with `from_lengths`, `from_ids` or `from_offsets`."""

    lengths_B: Tensor
    ids_T: Tensor

    @classmethod
    def from_lengths(cls, lengths: Sequence[int] | Tensor) -> Segments:
        lengths_B = torch.as_tensor(lengths, dtype=torch.int64)
        if lengths_B.ndim != 1:
            raise ValueError(
                f"segment lengths have shape {tuple(lengths_B.shape)}; they must form one flat list"
            )
        if lengths_B.numel() == 0:
            raise ValueError(
                "an empty batch: no segment lengths; a batch needs at least one sequence"
            )
        if int(lengths_B.min()) < 0:
            raise ValueError(
                f"segment lengths {lengths_B.tolist()[:8]} hold a negative number; lengths are >= 0"
            )
        ids = torch.arange(lengths_B.numel(), device=lengths_B.device)
        return cls(lengths_B, torch.repeat_interleave(ids, lengths_B))

    @classmethod
    def from_ids(cls, ids: Sequence[int] | Tensor, count: int | None = None) -> Segments:
        """From one segment number per token; `count` allows empty segments at the end."""
        ids_T = torch.as_tensor(ids, dtype=torch.int64)
        if ids_T.ndim != 1 or (ids_T.numel() == 0 and not count):
            raise ValueError(
                f"segment ids of shape {tuple(ids_T.shape)}; one number per token, at least one token"
            )
        steps = ids_T.diff()
        if ids_T.numel() and (int(ids_T[0]) < 0 or bool((steps < 0).any())):
            where = int((steps < 0).nonzero()[0]) if bool((steps < 0).any()) else 0
            raise ValueError(
                f"segment ids are unsorted or overlap near token {where}: {ids_T[where : where + 2].tolist()}; a "
                "sequence's tokens must lie together, in order, numbered from 0 (sort by sequence before packing)"
            )
        total = int(ids_T[-1]) + 1 if ids_T.numel() else 0
        if count is not None and count < total:
            raise ValueError(
                f"segment ids go up to {total - 1} but count={count}; count must be at least {total}"
            )
        return cls(torch.bincount(ids_T, minlength=count or total), ids_T)

    @classmethod
    def from_offsets(cls, offsets: Sequence[int] | Tensor) -> Segments:
        """From cumulative lengths [0, l0, l0 + l1, ...], the form attention kernels take."""
        offsets_B1 = torch.as_tensor(offsets, dtype=torch.int64)
        if offsets_B1.ndim != 1 or offsets_B1.numel() < 2 or int(offsets_B1[0]) != 0:
            raise ValueError(
                f"offsets {offsets_B1.tolist()[:8]} must start at 0 and have one entry more than segments"
            )
        if bool((offsets_B1.diff() < 0).any()):
            raise ValueError(
                f"offsets {offsets_B1.tolist()[:8]} go down: segments overlap; offsets must not decrease"
            )
        return cls.from_lengths(offsets_B1.diff())

    def cpu(self) -> Segments:
        return Segments(self.lengths_B.cpu(), self.ids_T.cpu())

    @property
    def count(self) -> int:
        """Number of segments, empty ones included."""
        return self.lengths_B.numel()

    @property
    def total(self) -> int:
        """Number of tokens."""
        return self.ids_T.numel()

    @property
    def offsets(self) -> Tensor:
        """Cumulative lengths, from 0 to the number of tokens (int64, one more than segments)."""
        return torch.cat([self.lengths_B.new_zeros(1), self.lengths_B.cumsum(0)])

    def sum(self, x_T: Tensor) -> Tensor:
        """Sum over each segment. Booleans are counted."""
        self.check(x_T)
        x_T = x_T.to(torch.int64) if x_T.dtype == torch.bool else x_T
        if x_T.is_cuda and x_T.is_floating_point():
            # index_add adds in any order on a GPU; this adds in token order, for the same bits every time.
            return torch.segment_reduce(x_T, "sum", lengths=self.lengths_B, initial=0, unsafe=True)
        return x_T.new_zeros(self.count).index_add(0, self.ids_T, x_T)

    def mean(self, x_T: Tensor, keep_T: Tensor) -> Tensor:
        """Mean over each segment's kept tokens; 0 for a segment that keeps none."""
        kept_B = self.sum(keep_T).clamp(min=1)
        return self.sum(torch.where(keep_T, x_T, 0)) / kept_B

    def broadcast(self, x_B: Tensor) -> Tensor:
        """Give every token its segment's value."""
        if x_B.shape[0] != self.count:
            raise ValueError(
                f"{x_B.shape[0]} values for {self.count} segments; there must be one per segment"
            )
        return x_B[self.ids_T]

    def last(self, keep_T: Tensor) -> Tensor:
        """Mask of the last kept token of each segment (none where a segment keeps none)."""
        self.check(keep_T)
        positions_T = torch.where(keep_T, torch.arange(self.total, device=keep_T.device), -1)
        last_B = positions_T.new_full((self.count,), -1)
        last_B = last_B.scatter_reduce(0, self.ids_T, positions_T, "amax")
        return keep_T & (positions_T == self.broadcast(last_B))

    def select(self, keep_T: Tensor) -> Segments:
        """The segments of the kept tokens alone (holes closed up); the number of segments stays."""
        self.check(keep_T)
        return Segments(self.sum(keep_T), self.ids_T[keep_T])

    def check(self, *tensors_T: Tensor) -> None:
        """Raise unless every tensor has one entry per token."""
        for x_T in tensors_T:
            if x_T.shape[:1] != (self.total,):
                raise ValueError(
                    f"a tensor of shape {tuple(x_T.shape)} for {self.total} packed tokens; mismatched lengths: "
                    "every per-token tensor must cover the whole flat token axis"
                )


def concat_ranges(starts_N: Tensor, lengths_N: Tensor) -> Tensor:
    """start, start + 1, ... for each of the ranges, one after the other."""
    before_N = lengths_N.cumsum(0) - lengths_N
    total = int(lengths_N.sum())
    return torch.repeat_interleave(
        starts_N - before_N, lengths_N, output_size=total
    ) + torch.arange(total, device=starts_N.device)
