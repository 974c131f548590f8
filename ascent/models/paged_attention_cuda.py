"""One new token of every row against its pages, on CUDA. Written in Triton.

A program takes one row, one key/value head and one piece of the row's past, with all query heads that share the head
(so keys and values are read once), and goes through its tokens in tiles, in order. A second kernel joins the pieces, in
order. Nothing depends on the other rows. Soft caps and sliding windows are arguments of the loop; a sink (the score of
a key whose value is 0) is what the first piece begins with.

Axes: B rows, H query heads, K key/value heads, D head size, S slots, P pages, C pieces.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64  # tokens read at once


def paged_attention(
    q_BHD: Tensor,
    keys_SKD: Tensor,
    values_SKD: Tensor,
    table_BP: Tensor,
    lengths_B: Tensor,
    *,
    page: int,
    splits: int,
    scaling: float,
    window: int | None,
    softcap: float | None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """softmax(q k / ...) v for one token a row: (B, H, D)."""
    rows, heads, size = q_BHD.shape
    kv_heads, value_size = values_SKD.shape[1:]
    group = heads // kv_heads
    out_BHD = torch.empty(rows, heads, value_size, dtype=q_BHD.dtype, device=q_BHD.device)
    pieces = torch.empty(rows, heads, splits, value_size, dtype=torch.float32, device=q_BHD.device)
    scales = torch.empty(rows, heads, splits, 2, dtype=torch.float32, device=q_BHD.device)
    widths: dict[str, Any] = {
        "HEADS": heads, "KV_HEADS": kv_heads, "GROUP": group, "GROUP_PADDED": max(16, triton.next_power_of_2(group)),
        "SIZE": size, "SIZE_PADDED": triton.next_power_of_2(size),
        "VALUE": value_size, "VALUE_PADDED": triton.next_power_of_2(value_size), "SPLITS": splits,
    }  # fmt: skip
    _pieces[(rows, kv_heads, splits)](
        q_BHD, keys_SKD, values_SKD, table_BP, lengths_B, out_BHD, pieces, scales,
        scales if sinks_H is None else sinks_H, table_BP.stride(0), scaling, softcap or 0.0,
        **widths, PAGE=page, TILE=TILE, WINDOW=window or 0, CAPPED=softcap is not None, SINKS=sinks_H is not None,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        _join[(rows, heads)](
            pieces, scales, out_BHD,
            HEADS=heads, VALUE=value_size, VALUE_PADDED=widths["VALUE_PADDED"], SPLITS=splits,
            SPLITS_PADDED=triton.next_power_of_2(splits), num_warps=4,
        )  # fmt: skip
    return out_BHD


@triton.jit
def _scores(q_GD, k_ND, seen_N, scaling, softcap, CAPPED: tl.constexpr):
    """Base-2 logarithms: exp2 is the hardware's own."""
    scores_GN = tl.dot(q_GD, tl.trans(k_ND)) * scaling
    if CAPPED:
        scores_GN = softcap * (2 * tl.sigmoid(2 * scores_GN / softcap) - 1)  # tanh
    return tl.where(seen_N[None, :], scores_GN * 1.4426950408889634, -float("inf"))


@triton.jit
def _begun(sinks_G, begins_G, GROUP_PADDED: tl.constexpr, SINKS: tl.constexpr):
    """The largest score and the mass before any token: none, but those of the sinks where a row begins."""
    top_G = tl.full([GROUP_PADDED], -float("inf"), tl.float32)
    mass_G = tl.zeros([GROUP_PADDED], tl.float32)
    if SINKS:
        top_G = tl.load(sinks_G, mask=begins_G, other=-float("inf")).to(tl.float32) * 1.4426950408889634
        mass_G = tl.where(begins_G, 1.0, 0.0)
    return top_G, mass_G


@triton.jit
def _pieces(
    q, keys, values, table, lengths, out, pieces, scales, sinks, table_stride, scaling, softcap,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr,
    SIZE: tl.constexpr, SIZE_PADDED: tl.constexpr, VALUE: tl.constexpr, VALUE_PADDED: tl.constexpr,
    SPLITS: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
):  # fmt: skip
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row)
    begin = tl.maximum(length - WINDOW, 0) if WINDOW > 0 else 0
    # Pieces are whole tiles, counted from the row's first token: the same tiles whatever the number of pieces.
    first_tile = begin // TILE
    tiles = tl.cdiv(length, TILE) - first_tile
    each = tl.cdiv(tiles, SPLITS)
    start = (first_tile + split * each) * TILE
    stop = tl.minimum((first_tile + (split + 1) * each) * TILE, length)
    heads_G = tl.arange(0, GROUP_PADDED)
    dims_D = tl.arange(0, SIZE_PADDED)
    dims_E = tl.arange(0, VALUE_PADDED)
    in_group = heads_G < GROUP
    query_rows = row * HEADS + kv_head * GROUP + heads_G
    q_GD = tl.load(
        q + query_rows[:, None] * SIZE + dims_D[None, :], mask=in_group[:, None] & (dims_D < SIZE)[None, :], other=0.0
    )
    top_G, mass_G = _begun(sinks + kv_head * GROUP + heads_G, in_group & (split == 0), GROUP_PADDED, SINKS)
    sum_GE = tl.zeros([GROUP_PADDED, VALUE_PADDED], tl.float32)
    for tile in range(start, stop, TILE):
        places_N = tile + tl.arange(0, TILE)
        seen_N = (places_N < length) & (places_N >= begin)
        pages_N = tl.load(table + row * table_stride + places_N // PAGE, mask=places_N < length, other=0).to(tl.int64)
        slots_N = (pages_N * PAGE + places_N % PAGE) * KV_HEADS + kv_head
        k_ND = tl.load(
            keys + slots_N[:, None] * SIZE + dims_D[None, :], mask=seen_N[:, None] & (dims_D < SIZE)[None, :], other=0.0
        )
        scores_GN = _scores(q_GD, k_ND, seen_N, scaling, softcap, CAPPED)
        new_G = tl.maximum(top_G, tl.max(scores_GN, 1))
        shrink_G = tl.exp2(top_G - new_G)
        p_GN = tl.exp2(scores_GN - new_G[:, None])
        mass_G = mass_G * shrink_G + tl.sum(p_GN, 1)
        v_NE = tl.load(
            values + slots_N[:, None] * VALUE + dims_E[None, :],
            mask=seen_N[:, None] & (dims_E < VALUE)[None, :],
            other=0.0,
        )
        sum_GE = sum_GE * shrink_G[:, None] + tl.dot(p_GN.to(v_NE.dtype), v_NE)
        top_G = new_G
    if SPLITS == 1:
        tl.store(
            out + query_rows[:, None] * VALUE + dims_E[None, :],
            (sum_GE / mass_G[:, None]).to(out.dtype.element_ty),
            mask=in_group[:, None] & (dims_E < VALUE)[None, :],
        )
    else:
        places_G = query_rows * SPLITS + split
        there_GE = in_group[:, None] & (dims_E < VALUE)[None, :]
        tl.store(pieces + places_G[:, None] * VALUE + dims_E[None, :], sum_GE, mask=there_GE)
        tl.store(scales + places_G * 2, top_G, mask=in_group)
        tl.store(scales + places_G * 2 + 1, mass_G, mask=in_group)


@triton.jit
def _join(
    pieces, scales, out,
    HEADS: tl.constexpr, VALUE: tl.constexpr, VALUE_PADDED: tl.constexpr,
    SPLITS: tl.constexpr, SPLITS_PADDED: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    place = (row * HEADS + head) * SPLITS
    pieces_C = tl.arange(0, SPLITS_PADDED)
    dims_E = tl.arange(0, VALUE_PADDED)
    there_C = pieces_C < SPLITS
    top_C = tl.load(scales + (place + pieces_C) * 2, mask=there_C, other=-float("inf"))
    mass_C = tl.load(scales + (place + pieces_C) * 2 + 1, mask=there_C, other=0.0)
    weight_C = tl.exp2(top_C - tl.max(top_C, 0))
    sum_CE = tl.load(
        pieces + (place + pieces_C)[:, None] * VALUE + dims_E[None, :],
        mask=there_C[:, None] & (dims_E < VALUE)[None, :],
        other=0.0,
    )
    total_E = tl.sum(sum_CE * weight_C[:, None], 0) / tl.sum(mass_C * weight_C, 0)
    tl.store(out + (row * HEADS + head) * VALUE + dims_E, total_E.to(out.dtype.element_ty), mask=dims_E < VALUE)
