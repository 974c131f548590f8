"""Sequences that begin alike: what they have in common is run once.

A causal model's state at a token depends on the tokens up to it alone, so the prompt of a group of answers, or of a
pair, need not be run once for each. The first of them runs whole; the others run from where they differ on, and attend
to the first one's keys and values as if these were their own. Afterwards every token gets its state, shared or not, so
nothing else knows. Gradients of what is shared are summed, in an order that does not change.

Axes: T tokens as the batch has them, U tokens as they are run, B sequences.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ascent.maths.segments import Segments

FEWEST = 8  # tokens in common that count
WORTH = 0.2  # share of all tokens that must be saved; gathering keys and values costs something too


class SharedPrefixes(NamedTuple):
    """Which tokens are run, where each token's state then lies, and how many each sequence takes from another."""

    kept_U: Tensor
    places_T: Tensor
    taken: list[int]


class Moves(NamedTuple):
    """Where each row is taken from, perhaps several times from one place; and the way back, which sums those again."""

    places_T: Tensor
    back_T: Tensor  # the rows of the result, sorted by where they came from
    counts_U: Tensor | None  # how often each was taken; None: once


def find_shared_prefixes(
    tokens_T: Tensor, segments: Segments, experts_TLC: Tensor | None = None
) -> SharedPrefixes | None:
    """Sequences that follow one another and begin alike; None where too little would be saved.

    Where experts are given, tokens that take others are not alike.
    """
    lengths, starts = segments.lengths_B.tolist(), segments.offsets.tolist()
    parts = [each.cpu() for each in (tokens_T, experts_TLC) if each is not None]
    common = [0, *(min(_common(each, *starts[row - 1 : row + 2]) for each in parts) for row in range(1, len(lengths)))]
    leaders, taken = _runs(common)
    if sum(taken) < WORTH * segments.total:
        return None
    first = [
        0,
        *accumulate(length - less for length, less in zip(lengths, taken, strict=True)),
    ]  # of those that are run
    kept, places = [], []
    for row, leader in enumerate(leaders):
        kept.append(torch.arange(starts[row] + taken[row], starts[row + 1]))
        places += [torch.arange(first[leader], first[leader] + taken[row]), torch.arange(first[row], first[row + 1])]
    device = segments.ids_T.device
    return SharedPrefixes(torch.cat(kept).to(device), torch.cat(places).to(device), taken)


def _common(each_T: Tensor, before: int, start: int, end: int) -> int:
    """With how many of its tokens this sequence begins as the one before it does."""
    most = min(start - before, end - start)
    same_N = each_T[before : before + most] == each_T[start : start + most]
    return int((same_N if same_N.ndim == 1 else same_N.flatten(1).all(1)).cumprod(0).sum())


def _runs(common: list[int]) -> tuple[list[int], list[int]]:
    """Whose beginning each sequence takes, and how many tokens of it: the same for all that take from one.

    A run ends where less is in common than half of what the run, or the next two sequences, have: the same first words
    before other prompts are not worth splitting a group for.
    """
    leaders, taken = list(range(len(common))), [0] * len(common)
    start, least = 0, 0
    for row in range(1, len(common) + 1):
        here = common[row] if row < len(common) else 0
        after = common[row + 1] if row + 1 < len(common) else 0
        if here >= FEWEST and 2 * here >= max(least, after):
            least = min(here, least) if least else here
            continue
        for other in range(start + 1, row):
            leaders[other], taken[other] = start, least
        start, least = row, 0
    return leaders, taken


def moves(places_T: Tensor, count: int) -> Moves:
    """The way back for rows that are taken from `count` rows."""
    counts_U = torch.bincount(places_T, minlength=count)
    once = places_T.numel() == count and bool((counts_U == 1).all())
    return Moves(places_T, places_T.argsort(stable=True), None if once else counts_U)


def moved(x_U: Tensor, by: Moves | None) -> Tensor:
    """The rows of `x_U` where they are to be."""
    if by is None:
        return x_U
    out_T: Tensor = _Moved.apply(x_U, *by)
    return out_T


class _Moved(torch.autograd.Function):
    """index_select, whose own gradient adds row by row: slow on a CPU, and in any order on a GPU."""

    @staticmethod
    def forward(ctx: Any, x_U: Tensor, places_T: Tensor, back_T: Tensor, counts_U: Tensor | None) -> Tensor:
        ctx.save_for_backward(back_T, counts_U)
        return x_U.index_select(0, places_T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_T: Tensor) -> tuple[Tensor | None, ...]:
        back_T, counts_U = ctx.saved_tensors
        d_T = d_T.index_select(0, back_T)
        if counts_U is None:
            return d_T, None, None, None
        wide_T = d_T.flatten(1).float() if d_T.element_size() < 4 else d_T.flatten(1)
        sums_U = torch.segment_reduce(wide_T, "sum", lengths=counts_U, initial=0, unsafe=True)
        return sums_U.unflatten(1, d_T.shape[1:]).to(d_T.dtype), None, None, None
