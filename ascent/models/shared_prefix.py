"""Shared prefixes are computed once.

In a causal model the state at a token depends only on the tokens up to it, so the prompt of a group of completions, or
of a pair, need not run once per sequence. The first sequence of a group runs in full; the others run from where they
differ on, and attend to the first one's keys and values. Afterwards every token gets its hidden state, shared or not,
so later code is unaffected. Gradients of shared tokens are summed in a fixed order.

Axes: T tokens of the batch, U computed tokens, B sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ascent.maths.segments import Segments, concat_ranges

MIN_SHARED_TOKENS = 8  # shorter prefixes are not shared
MIN_SAVED_FRAC = 0.2  # of all tokens, at least; gathering keys and values costs time too


class SharedPrefixes(NamedTuple):
    """Which tokens are computed, where each token's hidden state comes from, and each sequence's shared tokens."""

    computed_U: Tensor
    source_T: Tensor
    shared_lens: list[int]


class GatherIndex(NamedTuple):
    """An index_select, perhaps with repeats, and its deterministic backward."""

    source_T: Tensor
    sorted_T: Tensor  # the rows of the result, sorted by source
    counts_U: Tensor | None  # repeats of each source; None: at most one each
    ends_U: Tensor | None  # their running sum
    num_sources: int


Indices = TypeVar("Indices")


def upload(indices: Indices, device: torch.device) -> Indices:
    """A dataclass or NamedTuple of index tensors on a device, with one copy, which on CUDA waits for nothing."""
    tensors: list[Tensor] = []
    _map_tensors(indices, tensors.append)
    if device.type != "cuda" or any(each.is_cuda for each in tensors):
        return cast(Indices, _map_tensors(indices, lambda each: each.to(device)))
    flat = torch.cat([each.long() for each in tensors]).pin_memory().to(device, non_blocking=True)
    moved = iter(flat.split([each.numel() for each in tensors]))
    return cast(Indices, _map_tensors(indices, lambda each: next(moved).to(each.dtype)))


def _map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value,
            **{
                each.name: _map_tensors(getattr(value, each.name), change) for each in fields(value)
            },
        )
    if isinstance(value, GatherIndex):
        return GatherIndex(*(_map_tensors(each, change) for each in value))
    return value


def prefix_groups(
    tokens_T: Tensor, segments: Segments, experts_TLC: Tensor | None = None
) -> tuple[list[int], list[int]]:
    """For each sequence, the sequence it shares a prefix with (the first of its group), and how many tokens.

    Only neighbors share. With experts, tokens must agree in their experts too.
    """
    segments = segments.cpu()
    starts_B = segments.offsets[:-1]
    previous_B = torch.cat([starts_B[:1], starts_B[:-1]])
    positions_T = torch.arange(segments.total) - segments.broadcast(starts_B)
    # The token at the same position of the sequence before, if that is as long; the first sequence has none before it.
    there_T = positions_T < segments.broadcast(
        torch.cat([torch.zeros(1).long(), segments.lengths_B[:-1]])
    )
    other_T = torch.where(there_T, segments.broadcast(previous_B) + positions_T, 0)
    same_T = there_T
    for x_T in (tokens_T, experts_TLC):
        if x_T is not None:
            equal_T = x_T.cpu() == x_T.cpu()[other_T]
            same_T = same_T & (equal_T if equal_T.ndim == 1 else equal_T.flatten(1).all(1))
    differing_T = torch.where(same_T, segments.total, positions_T)
    common = segments.lengths_B.scatter_reduce(0, segments.ids_T, differing_T, "amin").tolist()
    return _prefix_groups(common)


def find_shared_prefixes(
    tokens_T: Tensor, segments: Segments, experts_TLC: Tensor | None = None
) -> SharedPrefixes | None:
    """Shared prefixes of neighboring sequences, on the CPU; None if too little would be saved."""
    leaders, shared_lens = prefix_groups(tokens_T, segments, experts_TLC)
    if sum(shared_lens) < MIN_SAVED_FRAC * segments.total:
        return None
    segments = segments.cpu()
    shared_B = torch.tensor(shared_lens)
    own_B = segments.lengths_B - shared_B
    computed_U = concat_ranges(segments.offsets[:-1] + shared_B, own_B)
    starts_B = own_B.cumsum(0) - own_B  # of each sequence's own tokens among the computed ones
    pieces_B2 = torch.stack([starts_B[torch.tensor(leaders)], starts_B], 1)
    source_T = concat_ranges(pieces_B2.flatten(), torch.stack([shared_B, own_B], 1).flatten())
    return SharedPrefixes(computed_U, source_T, shared_lens)


def _prefix_groups(common: list[int]) -> tuple[list[int], list[int]]:
    """The sequence that each one shares its prefix with, and how many tokens: one length per group.

    A group ends where the common prefix is less than half of the group's, or of the next two sequences': the same
    system prompt before different prompts must not split a group.
    """
    leaders, shared_lens = list(range(len(common))), [0] * len(common)
    start, shared = 0, 0
    for row in range(1, len(common) + 1):
        here = common[row] if row < len(common) else 0
        after = common[row + 1] if row + 1 < len(common) else 0
        if here >= MIN_SHARED_TOKENS and 2 * here >= max(shared, after):
            shared = min(here, shared) if shared else here
            continue
        for other in range(start + 1, row):
            leaders[other], shared_lens[other] = start, shared
        start, shared = row, 0
    return leaders, shared_lens


def gather_index(source_T: Tensor, count: int) -> GatherIndex:
    """The index for gathering rows `source_T` of `count` rows."""
    counts_U = torch.bincount(source_T, minlength=count)
    sorted_T = source_T.argsort(stable=True)
    if not bool((counts_U > 1).any()):
        return GatherIndex(source_T, sorted_T, None, None, count)
    return GatherIndex(source_T, sorted_T, counts_U, counts_U.cumsum(0), count)


def gather(x_U: Tensor, index: GatherIndex | None) -> Tensor:
    """x_U[index.source_T]; `x_U` if there is no index."""
    if index is None:
        return x_U
    out_T: Tensor = _Gather.apply(x_U, *index)
    return out_T


class _Gather(torch.autograd.Function):
    """index_select with another backward: the stock one is slow on a CPU and nondeterministic on a GPU."""

    @staticmethod
    def forward(ctx: Any, x_U: Tensor, source_T: Tensor, *rest: Any) -> Tensor:
        sorted_T, counts_U, ends_U, ctx.count = rest
        ctx.save_for_backward(source_T, sorted_T, counts_U, ends_U)
        return x_U.index_select(0, source_T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_T: Tensor) -> tuple[Tensor | None, ...]:
        source_T, sorted_T, counts_U, ends_U = ctx.saved_tensors
        none = (None, None, None, None, None)
        if counts_U is None:
            return d_T.new_zeros(ctx.count, *d_T.shape[1:]).index_copy_(0, source_T, d_T), *none
        if d_T.is_cuda and d_T.element_size() <= 4:
            from ascent.models.segment_sum_cuda import (
                segment_sum,
            )  # triton exists on CUDA machines only

            return segment_sum(d_T, sorted_T, counts_U, ends_U), *none
        d_T = d_T.index_select(0, sorted_T)
        wide_T = d_T.flatten(1).float() if d_T.element_size() < 4 else d_T.flatten(1)
        sums_U = torch.segment_reduce(wide_T, "sum", lengths=counts_U, initial=0, unsafe=True)
        return sums_U.unflatten(1, d_T.shape[1:]).to(d_T.dtype), *none
