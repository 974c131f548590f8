"""Which completions answer the same prompt, and statistics over them.

Axes: B sequences, G groups. Group members need not be adjacent, and groups may differ in size. Statistics skip what is
not `valid_B` (unscored completions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """Group numbers 0..count-1, one per sequence. Build it with `from_ids`, from any integers.

    `uids_B` are those integers. Micro-batches number their groups from 0 again, but members of one group have equal
    uids in all of them.
    """

    ids_B: Tensor
    count: int
    uids_B: Tensor

    @classmethod
    def from_ids(cls, ids: Sequence[int] | Tensor) -> Groups:
        raw_B = torch.as_tensor(ids, dtype=torch.int64)
        if raw_B.ndim != 1 or raw_B.numel() == 0:
            raise ValueError(
                f"group ids of shape {tuple(raw_B.shape)}: an empty batch; one id per sequence, at least 1"
            )
        unique, ids_B = torch.unique(raw_B, return_inverse=True)
        return cls(ids_B, unique.numel(), raw_B)

    def select(self, rows_B: Tensor) -> Groups:
        """The groups of some of the sequences."""
        return Groups.from_ids(self.uids_B[rows_B])

    def gather(self, index: Tensor) -> Groups:
        """The groups of tokens or pairs, numbered as here; `index` names the sequence that each belongs to."""
        return Groups(self.ids_B[index], self.count, self.uids_B[index])

    @classmethod
    def concat(cls, pieces: Sequence[Groups]) -> Groups:
        """The groups of several batches; equal uids are one group."""
        return cls.from_ids(torch.cat([each.uids_B for each in pieces]))

    def beyond(self, other: Groups) -> Groups:
        """The same groups with uids that `other` does not have."""
        return Groups.from_ids(self.ids_B + (other.uids_B.max() + 1))

    def sum(self, x_B: Tensor) -> Tensor:
        if x_B.shape[:1] != self.ids_B.shape:
            raise ValueError(
                f"{x_B.shape[0]} values for {self.ids_B.numel()} sequences; mismatched lengths"
            )
        x_B = x_B.to(torch.int64) if x_B.dtype == torch.bool else x_B
        if x_B.is_cuda and x_B.is_floating_point():
            # As in Segments.sum: a fixed order of addition, for the same bits every time.
            order_B = torch.argsort(self.ids_B, stable=True)
            sizes_G = torch.bincount(self.ids_B, minlength=self.count)
            return torch.segment_reduce(
                x_B[order_B], "sum", lengths=sizes_G, initial=0, unsafe=True
            )
        return x_B.new_zeros((self.count, *x_B.shape[1:])).index_add(0, self.ids_B, x_B)

    def broadcast(self, x_G: Tensor) -> Tensor:
        """Give every sequence its group's value."""
        return x_G[self.ids_B]

    def mean(self, x_B: Tensor, valid_B: Tensor) -> Tensor:
        """Mean of each group's valid members; 0 for a group with none."""
        return self.sum(torch.where(valid_B, x_B, 0)) / self.sum(valid_B).clamp(min=1)

    def std(self, x_B: Tensor, valid_B: Tensor) -> Tensor:
        """Sample standard deviation (n - 1) of each group's valid members; 0 for fewer than two."""
        off_B = torch.where(valid_B, x_B - self.broadcast(self.mean(x_B, valid_B)), 0)
        return (self.sum(off_B**2) / (self.sum(valid_B) - 1).clamp(min=1)).sqrt()

    def all_equal(self, x_B: Tensor, valid_B: Tensor) -> Tensor:
        """True for groups whose valid members are equal, up to 1e-6 of their size (docs/decisions/0007).

        It compares extremes, not the standard deviation: in float32 the mean of equal numbers need not be that number.
        """
        inf = float("inf")
        high_G = x_B.new_full((self.count,), -inf).scatter_reduce(
            0, self.ids_B, torch.where(valid_B, x_B, -inf), "amax"
        )
        low_G = x_B.new_full((self.count,), inf).scatter_reduce(
            0, self.ids_B, torch.where(valid_B, x_B, inf), "amin"
        )
        return high_G - low_G <= 1e-6 * high_G.abs().clamp(min=1)
