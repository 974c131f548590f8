"""Decode attention on CUDA, in Triton.

A program takes one row, one key/value head and one split of the row's tokens, with all query heads of the key/value
head (so keys and values are read once), and reads its tokens in tiles, in order. The program that reads the new token
first writes its key and value to the cache. If there are several splits, a second kernel combines them, in order. A
row's result does not depend on other rows. Soft caps and sliding windows are arguments of the loop; a sink (the score
of a key whose value is 0) is the initial state of the first split.

Rows that share the blocks of a prompt may be grouped: then a program reads these blocks once for all rows of a group,
and what it has found is the initial state of the rows' first splits, which start behind these blocks.

Axes: B rows, H query heads, K key/value heads, D head size, S slots, P blocks of a row, C splits, G groups, M members
of a group.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ascent.models.prefix_groups import MEMBERS, PrefixGroups

TILE = 64  # tokens per iteration
LEAST_DOT = 16  # tl.dot takes no tile with a smaller side
COMBINED = (
    (4, 1),
    (16, 1),
    (64, 2),
)  # splits, at most, and warps: a kernel for each, not for every number of splits


def pad_for_dot(size: int) -> int:
    """The side of a tile that holds `size` numbers: small heads are padded with zeros."""
    return max(LEAST_DOT, triton.next_power_of_2(size))


def paged_attention(
    q_BHD: Tensor,
    keys_SKD: Tensor,
    values_SKD: Tensor,
    block_table_BP: Tensor,
    lengths_B: Tensor,
    *,
    new_k_BKD: Tensor,
    new_v_BKD: Tensor,
    slots_B: Tensor,
    block_size: int,
    splits: int,
    scaling: float,
    window: int | None,
    softcap: float | None,
    sinks_H: Tensor | None = None,
    prefixes: PrefixGroups | None = None,
) -> Tensor:
    """softmax(scaling q k) v for one token per row: (B, H, D). Its key and value are written to the slots first."""
    rows, heads, size = q_BHD.shape
    kv_heads, value_size = values_SKD.shape[1:]
    group = heads // kv_heads
    if window is not None or sinks_H is not None or block_size % TILE:
        prefixes = None
    out_BHD = torch.empty(rows, heads, value_size, dtype=q_BHD.dtype, device=q_BHD.device)
    # What is found in the prefix is stored as the first split's part, which reads it and then stores its own there.
    partials = torch.empty(
        rows, heads, splits, value_size, dtype=torch.float32, device=q_BHD.device
    )
    scales = torch.empty(rows, heads, splits, 2, dtype=torch.float32, device=q_BHD.device)
    sizes: dict[str, Any] = {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "GROUP_PADDED": pad_for_dot(group),
        "SIZE": size,
        "SIZE_PADDED": pad_for_dot(size),
        "VALUE": value_size,
        "VALUE_PADDED": pad_for_dot(value_size),
        "BLOCK_SIZE": block_size,
        "TILE": TILE,
        "CAPPED": softcap is not None,
    }
    if prefixes is not None:
        _prefix_attention[(prefixes.members_GM.shape[0], kv_heads)](
            q_BHD,
            keys_SKD,
            values_SKD,
            block_table_BP,
            prefixes.members_GM,
            prefixes.lengths_B,
            partials,
            scales,
            block_table_BP.stride(0),
            scaling,
            softcap or 0.0,
            splits,
            **sizes,
            MEMBERS=MEMBERS,
            QUERIES=pad_for_dot(MEMBERS * group),
            num_warps=4,
            num_stages=3,
        )
    _partial_attention[(rows, kv_heads, splits)](
        q_BHD,
        keys_SKD,
        values_SKD,
        block_table_BP,
        lengths_B,
        lengths_B if prefixes is None else prefixes.lengths_B,
        new_k_BKD,
        new_v_BKD,
        slots_B,
        out_BHD,
        partials,
        scales,
        scales if sinks_H is None else sinks_H,
        *new_k_BKD.stride()[:2],
        *new_v_BKD.stride()[:2],
        block_table_BP.stride(0),
        scaling,
        softcap or 0.0,
        splits,
        **sizes,
        GROUPED=prefixes is not None,
        WHOLE=splits == 1,
        WINDOW=window or 0,
        SINKS=sinks_H is not None,
        num_warps=4,
        num_stages=3,
    )
    if splits > 1:
        padded, warps = next(each for each in COMBINED if each[0] >= splits)
        _combine[(rows, heads)](
            partials,
            scales,
            out_BHD,
            splits,
            HEADS=heads,
            VALUE=value_size,
            VALUE_PADDED=sizes["VALUE_PADDED"],
            PARTS_PADDED=padded,
            num_warps=warps,
        )
    return out_BHD


def write_kv(
    keys_SKD: Tensor, values_SKD: Tensor, slots_T: Tensor, k_TKD: Tensor, v_TKD: Tensor
) -> None:
    """keys[slots] = k and values[slots] = v."""
    k_TD, v_TD = k_TKD.flatten(1), v_TKD.flatten(1)  # views, unless heads are not adjacent
    sizes = k_TD.shape[1], v_TD.shape[1]
    _write[(slots_T.shape[0],)](
        keys_SKD,
        values_SKD,
        slots_T,
        k_TD,
        v_TD,
        k_TD.stride(0),
        v_TD.stride(0),
        KEYS=sizes[0],
        VALUES=sizes[1],
        BLOCK=triton.next_power_of_2(max(sizes)),
        num_warps=2,
    )


@triton.jit
def copy_vector(source, target, SIZE: tl.constexpr, PADDED: tl.constexpr):
    dims = tl.arange(0, PADDED)
    tl.store(target + dims, tl.load(source + dims, mask=dims < SIZE), mask=dims < SIZE)


@triton.jit
def _write(
    keys,
    values,
    slots,
    k,
    v,
    k_stride,
    v_stride,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    copy_vector(k + token * k_stride, keys + slot * KEYS, KEYS, BLOCK)
    copy_vector(v + token * v_stride, values + slot * VALUES, VALUES, BLOCK)


@triton.jit
def _slots(row_blocks, tile, length, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    """Where the tokens of a tile are in the cache."""
    places_N = tl.arange(0, TILE)
    if BLOCK_SIZE % TILE == 0:  # a tile lies in one block
        return (
            tl.load(row_blocks + tile // BLOCK_SIZE).to(tl.int64) * BLOCK_SIZE
            + tile % BLOCK_SIZE
            + places_N
        )
    else:
        there_N = tile + places_N < length
        blocks_N = tl.load(row_blocks + (tile + places_N) // BLOCK_SIZE, mask=there_N, other=0).to(
            tl.int64
        )
        return blocks_N * BLOCK_SIZE + (tile + places_N) % BLOCK_SIZE


@triton.jit
def _scores(q_GD, k_ND, seen_N, scaling, softcap, CAPPED: tl.constexpr):
    """In base 2: exp2 is a hardware instruction."""
    scores_GN = tl.dot(q_GD, tl.trans(k_ND)) * scaling
    if CAPPED:
        scores_GN = softcap * (2 * tl.sigmoid(2 * scores_GN / softcap) - 1)  # tanh
    return tl.where(seen_N[None, :], scores_GN * 1.4426950408889634, -float("inf"))


@triton.jit
def _initial_state(
    partials,
    scales,
    part_G,
    prefixed_G,
    sinks_G,
    has_sink_G,
    GROUP_PADDED: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    GROUPED: tl.constexpr,
    SINKS: tl.constexpr,
):
    """The largest score, the mass and the sum before a split's own tokens: those of sinks or of the prefix, or none."""
    top_G = tl.full([GROUP_PADDED], -float("inf"), tl.float32)
    mass_G = tl.zeros([GROUP_PADDED], tl.float32)
    sum_GE = tl.zeros([GROUP_PADDED, VALUE_PADDED], tl.float32)
    if SINKS:
        top_G = (
            tl.load(sinks_G, mask=has_sink_G, other=-float("inf")).to(tl.float32)
            * 1.4426950408889634
        )
        mass_G = tl.where(has_sink_G, 1.0, 0.0)
    if GROUPED:  # models with sinks are not grouped
        dims_E = tl.arange(0, VALUE_PADDED)
        top_G = tl.load(scales + part_G * 2, mask=prefixed_G, other=-float("inf"))
        mass_G = tl.load(scales + part_G * 2 + 1, mask=prefixed_G, other=0.0)
        places_GE = partials + part_G[:, None] * VALUE + dims_E[None, :]
        sum_GE = tl.load(places_GE, mask=prefixed_G[:, None] & (dims_E < VALUE)[None, :], other=0.0)
    return top_G, mass_G, sum_GE


@triton.jit(do_not_specialize=["splits"])
def _partial_attention(
    q,
    keys,
    values,
    block_table,
    lengths,
    prefix_lengths,
    new_k,
    new_v,
    slots,
    out,
    partials,
    scales,
    sinks,
    new_k_row,
    new_k_head,
    new_v_row,
    new_v_head,
    block_table_stride,
    scaling,
    softcap,
    splits,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    CAPPED: tl.constexpr,
    GROUPED: tl.constexpr,
    WHOLE: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
):
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row)
    begin = tl.maximum(length - WINDOW, 0) if WINDOW > 0 else 0
    if GROUPED:
        begin = tl.load(prefix_lengths + row)
    # Splits are whole tiles, counted from the row's first token: the same tiles for any number of splits.
    first_tile = begin // TILE
    per_split = tl.cdiv(tl.cdiv(length, TILE) - first_tile, splits)
    start = (first_tile + split * per_split) * TILE
    stop = tl.minimum(start + per_split * TILE, length)
    heads_G, dims_D, dims_E = (
        tl.arange(0, GROUP_PADDED),
        tl.arange(0, SIZE_PADDED),
        tl.arange(0, VALUE_PADDED),
    )
    in_group = heads_G < GROUP
    if (start < length) & (stop == length):  # this program reads the new token
        slot = tl.load(slots + row).to(tl.int64) * KV_HEADS + kv_head
        copy_vector(
            new_k + row * new_k_row + kv_head * new_k_head, keys + slot * SIZE, SIZE, SIZE_PADDED
        )
        copy_vector(
            new_v + row * new_v_row + kv_head * new_v_head,
            values + slot * VALUE,
            VALUE,
            VALUE_PADDED,
        )
        tl.debug_barrier()  # all warps of the program see both
    row_blocks = block_table + row * block_table_stride
    query_rows = row * HEADS + kv_head * GROUP + heads_G
    q_GD = tl.load(
        q + query_rows[:, None] * SIZE + dims_D[None, :],
        mask=in_group[:, None] & (dims_D < SIZE)[None, :],
        other=0.0,
    )
    part_G, in_first_G = query_rows * splits + split, in_group & (split == 0)
    top_G, mass_G, sum_GE = _initial_state(
        partials,
        scales,
        part_G,
        in_first_G & (begin > 0),
        sinks + kv_head * GROUP + heads_G,
        in_first_G,
        GROUP_PADDED,
        VALUE,
        VALUE_PADDED,
        GROUPED,
        SINKS,
    )
    for tile in range(start, stop, TILE):
        positions_N = tile + tl.arange(0, TILE)
        seen_N = (positions_N < length) & (positions_N >= begin)
        slots_N = _slots(row_blocks, tile, length, BLOCK_SIZE, TILE) * KV_HEADS + kv_head
        k_ND = tl.load(
            keys + slots_N[:, None] * SIZE + dims_D[None, :],
            mask=seen_N[:, None] & (dims_D < SIZE)[None, :],
            other=0.0,
        )
        scores_GN = _scores(q_GD, k_ND, seen_N, scaling, softcap, CAPPED)
        new_G = tl.maximum(top_G, tl.max(scores_GN, 1))
        shrink_G = tl.exp2(top_G - new_G)
        p_GN = tl.exp2(scores_GN - new_G[:, None])
        mass_G = mass_G * shrink_G + tl.sum(p_GN, 1)
        there_NE = seen_N[:, None] & (dims_E < VALUE)[None, :]
        v_NE = tl.load(
            values + slots_N[:, None] * VALUE + dims_E[None, :], mask=there_NE, other=0.0
        )
        sum_GE = sum_GE * shrink_G[:, None] + tl.dot(p_GN.to(v_NE.dtype), v_NE)
        top_G = new_G
    if WHOLE:
        valid_GE = in_group[:, None] & (dims_E < VALUE)[None, :]
        own_GE = out + query_rows[:, None] * VALUE + dims_E[None, :]
        tl.store(own_GE, (sum_GE / mass_G[:, None]).to(out.dtype.element_ty), mask=valid_GE)
    else:
        if GROUPED:
            tl.debug_barrier()  # all warps have read what this overwrites
        _store_part(partials, scales, part_G, in_group, top_G, mass_G, sum_GE, VALUE, VALUE_PADDED)


@triton.jit
def _store_part(
    partials,
    scales,
    index_G,
    valid_G,
    top_G,
    mass_G,
    sum_GE,
    VALUE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
):
    dims_E = tl.arange(0, VALUE_PADDED)
    valid_GE = valid_G[:, None] & (dims_E < VALUE)[None, :]
    tl.store(partials + index_G[:, None] * VALUE + dims_E[None, :], sum_GE, mask=valid_GE)
    tl.store(scales + index_G * 2, top_G, mask=valid_G)
    tl.store(scales + index_G * 2 + 1, mass_G, mask=valid_G)


@triton.jit(do_not_specialize=["splits"])
def _prefix_attention(
    q,
    keys,
    values,
    block_table,
    members,
    prefix_lengths,
    partials,
    scales,
    block_table_stride,
    scaling,
    softcap,
    splits,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    CAPPED: tl.constexpr,
    MEMBERS: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """The initial state of the first split of every row of a group: the tokens of their common blocks."""
    group, kv_head = tl.program_id(0), tl.program_id(1)
    first_row = tl.load(members + group * MEMBERS)
    if first_row >= 0:
        length = tl.load(prefix_lengths + first_row)
        row_blocks = block_table + first_row * block_table_stride
        queries_N = tl.arange(0, QUERIES)  # the query heads of the first member, of the second, ...
        inside_N = queries_N < MEMBERS * GROUP
        rows_N = tl.load(members + group * MEMBERS + queries_N // GROUP, mask=inside_N, other=-1)
        valid_N = rows_N >= 0
        dims_D, dims_E = tl.arange(0, SIZE_PADDED), tl.arange(0, VALUE_PADDED)
        query_rows = rows_N * HEADS + kv_head * GROUP + queries_N % GROUP
        q_ND = tl.load(
            q + query_rows[:, None] * SIZE + dims_D[None, :],
            mask=valid_N[:, None] & (dims_D < SIZE)[None, :],
            other=0.0,
        )
        top_N = tl.full([QUERIES], -float("inf"), tl.float32)
        mass_N = tl.zeros([QUERIES], tl.float32)
        sum_NE = tl.zeros([QUERIES, VALUE_PADDED], tl.float32)
        for tile in range(0, length, TILE):
            slots_T = _slots(row_blocks, tile, length, BLOCK_SIZE, TILE) * KV_HEADS + kv_head
            k_TD = tl.load(
                keys + slots_T[:, None] * SIZE + dims_D[None, :],
                mask=(dims_D < SIZE)[None, :],
                other=0.0,
            )
            scores_NT = _scores(q_ND, k_TD, slots_T >= 0, scaling, softcap, CAPPED)
            new_N = tl.maximum(top_N, tl.max(scores_NT, 1))
            shrink_N = tl.exp2(top_N - new_N)
            p_NT = tl.exp2(scores_NT - new_N[:, None])
            mass_N = mass_N * shrink_N + tl.sum(p_NT, 1)
            v_TE = tl.load(
                values + slots_T[:, None] * VALUE + dims_E[None, :],
                mask=(dims_E < VALUE)[None, :],
                other=0.0,
            )
            sum_NE = sum_NE * shrink_N[:, None] + tl.dot(p_NT.to(v_TE.dtype), v_TE)
            top_N = new_N
        _store_part(
            partials,
            scales,
            query_rows * splits,
            valid_N,
            top_N,
            mass_N,
            sum_NE,
            VALUE,
            VALUE_PADDED,
        )


@triton.jit(do_not_specialize=["splits"])
def _combine(
    partials,
    scales,
    out,
    splits,
    HEADS: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    PARTS_PADDED: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    index = (row * HEADS + head) * splits
    parts_C = tl.arange(0, PARTS_PADDED)
    dims_E = tl.arange(0, VALUE_PADDED)
    valid_C = parts_C < splits
    top_C = tl.load(scales + (index + parts_C) * 2, mask=valid_C, other=-float("inf"))
    mass_C = tl.load(scales + (index + parts_C) * 2 + 1, mask=valid_C, other=0.0)
    weight_C = tl.exp2(top_C - tl.max(top_C, 0))
    sum_CE = tl.load(
        partials + (index + parts_C)[:, None] * VALUE + dims_E[None, :],
        mask=valid_C[:, None] & (dims_E < VALUE)[None, :],
        other=0.0,
    )
    total_E = tl.sum(sum_CE * weight_C[:, None], 0) / tl.sum(mass_C * weight_C, 0)
    tl.store(
        out + (row * HEADS + head) * VALUE + dims_E,
        total_E.to(out.dtype.element_ty),
        mask=dims_E < VALUE,
    )
