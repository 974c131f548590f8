"""Tensors of a checkpoint that several ranks write, each its piece, and that any number of ranks reads.

A piece is a range of the flattened tensor. Files do not say how many ranks there were: whoever reads a tensor takes the
range that it needs out of all pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor


class TensorPiece(NamedTuple):
    """The values of a flattened tensor from `start` on; none where another rank has them all."""

    values: Tensor
    start: int
    shape: tuple[int, ...]


class SavedPiece(NamedTuple):
    """Where a piece is: an open file of safetensors, and its name there."""

    file: Any
    name: str
    start: int
    stop: int


class SavedTensor(NamedTuple):
    """A tensor in the files of a checkpoint. Only what is asked for is read."""

    shape: tuple[int, ...]
    pieces: Sequence[SavedPiece]

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = self.pieces[0].file.get_slice(self.pieces[0].name)[:0].dtype
        return found

    def read(self, start: int, stop: int) -> Tensor:
        """The flattened values of a range. Pieces may overlap; a gap is an error."""
        found, at = [], start
        for piece in sorted(self.pieces, key=lambda each: each.start):
            if piece.start <= at < min(piece.stop, stop):
                end = min(piece.stop, stop)
                found.append(piece.file.get_slice(piece.name)[at - piece.start : end - piece.start])
                at = end
        if at < stop:
            raise ValueError(
                f"a tensor of shape {self.shape} has no values from {at} on; a part of the checkpoint is lost"
            )
        return torch.cat(found) if found else torch.empty(0, dtype=self.dtype)

    def whole(self) -> Tensor:
        return self.read(0, prod(self.shape)).view(self.shape)


Saved: TypeAlias = Tensor | SavedTensor


def read_range(saved: Saved, start: int, stop: int) -> Tensor:
    """The flattened values of a range of a tensor, in memory or in a checkpoint."""
    return (
        saved.read(start, stop) if isinstance(saved, SavedTensor) else saved.reshape(-1)[start:stop]
    )


def read_whole(saved: Saved) -> Tensor:
    return saved.whole() if isinstance(saved, SavedTensor) else saved
