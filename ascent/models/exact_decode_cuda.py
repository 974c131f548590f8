"""Attention of decode steps on CUDA with the bits of packed attention (`exact_attention_cuda`), in Triton.

A program takes the query heads of one row that read the same key/value head. They are few, so they are the columns of
its products (16, where a tile of packed attention has 64 rows): the rows are the keys of a chunk, then the dimensions
of the output. Factors are exchanged; their products and the order of sums are not.

Rows that share a prompt read its whole chunks together, as the rows of a tile of packed attention: the state after them
(largest score, mass, weighted sum, of the merged spans and of the last one; in float32) is stored, and every row goes
on from it.

Axes: B rows, H query heads, K key/value heads, D head size, S slots, P blocks of a row, Q queries of a program, N keys
of a chunk, O equal rows of a mass, G groups of rows, M members of a group.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ascent.models.exact_attention_cuda import (
    CHUNK,
    LOG2_E,
    PRODUCT_ROWS,
    SPAN,
    add_chunk,
    empty,
    merge,
    nothing,
    shrinks,
)
from ascent.models.paged_attention_cuda import copy_vector
from ascent.models.prefix_groups import MEMBERS, PrefixGroups

COLUMNS = 16  # fewer than these would run on another instruction
MAX_GROUP_ROWS = 128  # query heads of all members of a group; more do not fit into the registers
STAGES = 3


def decode_attention(
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
    scaling: float,
    splits: int = 1,
    prefixes: PrefixGroups | None = None,
) -> Tensor:
    """One query per row against its cached tokens: (B, H, D). Its key and value are written to the slots first.

    `splits` programs share a row, if it has as many spans; then rows do not read a prompt together.
    """
    rows, heads, size = q_BHD.shape
    kv_heads, padded = keys_SKD.shape[1], max(PRODUCT_ROWS, triton.next_power_of_2(size))
    group, spans = heads // kv_heads, triton.cdiv(block_table_BP.shape[1] * block_size, SPAN)
    splits = max(1, min(splits, spans))
    if MEMBERS * group > MAX_GROUP_ROWS or splits > 1:
        prefixes = None
    out_BHD = q_BHD.new_empty(q_BHD.shape)
    sizes: dict[str, Any] = {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "SIZE": size,
        "PADDED": padded,
        "BLOCK_SIZE": block_size,
        "CHUNK": CHUNK,
        "SPAN": SPAN,
        "enable_fp_fusion": False,
    }
    tensors = (q_BHD, keys_SKD, values_SKD, block_table_BP)
    state = shared = lengths_B
    if prefixes is not None:
        shared = prefixes.lengths_B
        state = q_BHD.new_empty(
            rows, heads, 2, padded + 2, dtype=torch.float32
        )  # of merged spans, and of the last
        queries = max(PRODUCT_ROWS, triton.next_power_of_2(MEMBERS * group))
        _prefix[(prefixes.members_GM.shape[0], kv_heads)](
            *tensors,
            prefixes.members_GM,
            shared,
            state,
            block_table_BP.stride(0),
            scaling * LOG2_E,
            **sizes,
            MEMBERS=MEMBERS,
            ROWS=queries,
            num_warps=queries // 16,
            num_stages=STAGES,
        )
    elif splits > 1:
        state = q_BHD.new_empty(rows, heads, spans, padded + 2, dtype=torch.float32)
    _decode[(rows, kv_heads, splits)](
        *tensors,
        lengths_B,
        shared,
        state,
        new_k_BKD,
        new_v_BKD,
        slots_B,
        out_BHD,
        *new_k_BKD.stride()[:2],
        *new_v_BKD.stride()[:2],
        block_table_BP.stride(0),
        scaling * LOG2_E,
        spans,
        **sizes,
        CONTINUES=prefixes is not None,
        WHOLE=splits == 1,
        QUERIES=max(COLUMNS, triton.next_power_of_2(group)),
        num_warps=4,
        num_stages=STAGES,
    )
    if splits > 1:
        _merge_spans[(rows, heads)](
            state,
            lengths_B,
            out_BHD,
            scaling * LOG2_E,
            spans,
            HEADS=heads,
            SIZE=size,
            PADDED=padded,
            SPAN=SPAN,
            num_warps=1,
            enable_fp_fusion=False,
        )
    return out_BHD


@triton.jit
def _add_chunk(q_DQ, k_ND, v_ND, seen_N, top_Q, mass_OQ, sum_DQ, scale):
    """The state after one more chunk, as in packed attention with rows and columns exchanged."""
    scores_NQ = tl.where(seen_N[:, None], tl.dot(k_ND, q_DQ), -float("inf"))
    new_Q = tl.maximum(top_Q, tl.max(scores_NQ, 0))
    base_Q = tl.where(new_Q == -float("inf"), 0.0, new_Q)
    scale_NQ = tl.zeros_like(scores_NQ) + scale
    p_NQ = tl.exp2(
        tl.fma(scores_NQ, scale_NQ, tl.zeros_like(scores_NQ) - (base_Q * scale)[None, :])
    ).to(v_ND.dtype)
    shrink_Q = tl.exp2((top_Q - base_Q) * scale)
    ones_ON = tl.full([k_ND.shape[0], k_ND.shape[0]], 1.0, tl.float32).to(v_ND.dtype)
    mass_OQ = tl.dot(ones_ON, p_NQ, mass_OQ * shrink_Q[None, :])
    sum_DQ = tl.dot(tl.trans(v_ND), p_NQ, sum_DQ * shrink_Q[None, :])
    return new_Q, mass_OQ, sum_DQ


@triton.jit
def _empty(QUERIES: tl.constexpr, PADDED: tl.constexpr, CHUNK: tl.constexpr):
    """The state before any key: largest score, mass (in equal rows), weighted sum."""
    top_Q = tl.full([QUERIES], -float("inf"), tl.float32)
    return top_Q, tl.zeros([CHUNK, QUERIES], tl.float32), tl.zeros([PADDED, QUERIES], tl.float32)


@triton.jit
def _nothing(QUERIES: tl.constexpr, PADDED: tl.constexpr):
    """The state of no span."""
    top_Q = tl.full([QUERIES], -float("inf"), tl.float32)
    return top_Q, tl.zeros([QUERIES], tl.float32), tl.zeros([PADDED, QUERIES], tl.float32)


@triton.jit
def _merge(top_Q, mass_Q, sum_DQ, span_top_Q, span_mass_OQ, span_sum_DQ, scale):
    """The state of some spans and the next one. Of the next one's mass one row is kept: all are equal."""
    new_Q, shrink_Q, span_shrink_Q = shrinks(top_Q, span_top_Q, scale)
    mass_Q = mass_Q * shrink_Q + tl.max(span_mass_OQ, 0) * span_shrink_Q
    sum_DQ = sum_DQ * shrink_Q[None, :] + span_sum_DQ * span_shrink_Q[None, :]
    return new_Q, mass_Q, sum_DQ


@triton.jit
def _load_paged(
    keys,
    values,
    row_blocks,
    chunk,
    end,
    kv_head,
    BLOCK_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Keys and values of a chunk, 0 from token `end` on: what lies there may be anything."""
    index_N, dims_D = chunk + tl.arange(0, CHUNK), tl.arange(0, PADDED)
    if BLOCK_SIZE % CHUNK == 0:  # a chunk lies in one block
        slot = (
            tl.load(row_blocks + chunk // BLOCK_SIZE).to(tl.int64) * BLOCK_SIZE + chunk % BLOCK_SIZE
        )
        slots_N = slot + tl.arange(0, CHUNK)
    else:
        blocks_N = tl.load(row_blocks + index_N // BLOCK_SIZE, mask=index_N < end, other=0).to(
            tl.int64
        )
        slots_N = blocks_N * BLOCK_SIZE + index_N % BLOCK_SIZE
    places_ND = (slots_N * KV_HEADS + kv_head)[:, None] * SIZE + dims_D[None, :]
    there_ND = (index_N < end)[:, None] & (dims_D < SIZE)[None, :]
    return tl.load(keys + places_ND, mask=there_ND, other=0.0), tl.load(
        values + places_ND, mask=there_ND, other=0.0
    )


@triton.jit
def _add_paged(
    q_DQ,
    keys,
    values,
    row_blocks,
    begin,
    end,
    kv_head,
    top_Q,
    mass_Q,
    sum_DQ,
    span_top_Q,
    span_mass_OQ,
    span_sum_DQ,
    scale,
    BLOCK_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Both states, of merged spans and of the last one, after the chunks from `begin` to `end` of a cached row."""
    for chunk in range(
        begin, end, CHUNK
    ):  # one loop, so that loads run ahead over the ends of spans
        if (chunk > begin) & (chunk % SPAN == 0):
            top_Q, mass_Q, sum_DQ = _merge(
                top_Q, mass_Q, sum_DQ, span_top_Q, span_mass_OQ, span_sum_DQ, scale
            )
            span_top_Q, span_mass_OQ, span_sum_DQ = _empty(q_DQ.shape[1], PADDED, CHUNK)
        k_ND, v_ND = _load_paged(
            keys, values, row_blocks, chunk, end, kv_head, BLOCK_SIZE, KV_HEADS, SIZE, PADDED, CHUNK
        )
        seen_N = chunk + tl.arange(0, CHUNK) < end
        span_top_Q, span_mass_OQ, span_sum_DQ = _add_chunk(
            q_DQ, k_ND, v_ND, seen_N, span_top_Q, span_mass_OQ, span_sum_DQ, scale
        )
    return top_Q, mass_Q, sum_DQ, span_top_Q, span_mass_OQ, span_sum_DQ


@triton.jit
def _load_state(state_Q, there_Q, PADDED: tl.constexpr):
    """A stored state, turned; that of no key where there is none."""
    sum_DQ = tl.load(
        state_Q[None, :] + tl.arange(0, PADDED)[:, None], mask=there_Q[None, :], other=0.0
    )
    top_Q = tl.load(state_Q + PADDED, mask=there_Q, other=-float("inf"))
    return top_Q, tl.load(state_Q + PADDED + 1, mask=there_Q, other=0.0), sum_DQ


@triton.jit
def _store_state(state_Q, there_Q, top_Q, mass_Q, sum_QD, PADDED: tl.constexpr):
    tl.store(state_Q[:, None] + tl.arange(0, PADDED)[None, :], sum_QD, mask=there_Q[:, None])
    tl.store(state_Q + PADDED, top_Q, mask=there_Q)
    tl.store(state_Q + PADDED + 1, mass_Q, mask=there_Q)


@triton.jit
def _decode(
    q,
    keys,
    values,
    block_table,
    lengths,
    shared,
    state,
    new_k,
    new_v,
    slots,
    out,
    new_k_row,
    new_k_head,
    new_v_row,
    new_v_head,
    block_table_stride,
    scale,
    spans,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    SPAN: tl.constexpr,
    CONTINUES: tl.constexpr,
    WHOLE: tl.constexpr,
    QUERIES: tl.constexpr,
):
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row)
    if (length - 1) // SPAN % tl.num_programs(2) == split:  # this program reads the new token
        slot = (tl.load(slots + row).to(tl.int64) * KV_HEADS + kv_head) * SIZE
        copy_vector(new_k + row * new_k_row + kv_head * new_k_head, keys + slot, SIZE, PADDED)
        copy_vector(new_v + row * new_v_row + kv_head * new_v_head, values + slot, SIZE, PADDED)
        tl.debug_barrier()  # all warps of the program see both
    heads_Q, dims_D = tl.arange(0, QUERIES), tl.arange(0, PADDED)
    there_Q = heads_Q < GROUP
    there_DQ = (dims_D < SIZE)[:, None] & there_Q[None, :]
    queries_Q = row.to(tl.int64) * HEADS + kv_head * GROUP + heads_Q
    places_DQ = dims_D[:, None] + queries_Q[None, :] * SIZE
    q_DQ = tl.load(q + places_DQ, mask=there_DQ, other=0.0)
    row_blocks = block_table + row.to(tl.int64) * block_table_stride
    top_Q, mass_Q, sum_DQ = _nothing(QUERIES, PADDED)
    if WHOLE:
        begin = 0
        span_top_Q, span_mass_OQ, span_sum_DQ = _empty(QUERIES, PADDED, CHUNK)
        if CONTINUES:  # behind the chunks of a prefix, which may end inside a span
            begin = tl.load(shared + row) // CHUNK * CHUNK
            own_Q = state + queries_Q * (2 * PADDED + 4)
            top_Q, mass_Q, sum_DQ = _load_state(own_Q, there_Q & (begin >= SPAN), PADDED)
            own_Q += PADDED + 2
            span_top_Q, span_mass_Q, span_sum_DQ = _load_state(
                own_Q, there_Q & (begin % SPAN > 0), PADDED
            )
            span_mass_OQ += span_mass_Q[None, :]
        top_Q, mass_Q, sum_DQ, span_top_Q, span_mass_OQ, span_sum_DQ = _add_paged(
            q_DQ,
            keys,
            values,
            row_blocks,
            begin,
            length,
            kv_head,
            top_Q,
            mass_Q,
            sum_DQ,
            span_top_Q,
            span_mass_OQ,
            span_sum_DQ,
            scale,
            BLOCK_SIZE,
            KV_HEADS,
            SIZE,
            PADDED,
            CHUNK,
            SPAN,
        )
        top_Q, mass_Q, sum_DQ = _merge(
            top_Q, mass_Q, sum_DQ, span_top_Q, span_mass_OQ, span_sum_DQ, scale
        )
        tl.store(
            out + places_DQ, (sum_DQ / mass_Q[None, :]).to(out.dtype.element_ty), mask=there_DQ
        )
    else:
        for span in range(split * SPAN, length, tl.num_programs(2) * SPAN):
            span_top_Q, span_mass_OQ, span_sum_DQ = _empty(QUERIES, PADDED, CHUNK)
            _, _, _, span_top_Q, span_mass_OQ, span_sum_DQ = _add_paged(
                q_DQ,
                keys,
                values,
                row_blocks,
                span,
                tl.minimum(span + SPAN, length),
                kv_head,
                top_Q,
                mass_Q,
                sum_DQ,
                span_top_Q,
                span_mass_OQ,
                span_sum_DQ,
                scale,
                BLOCK_SIZE,
                KV_HEADS,
                SIZE,
                PADDED,
                CHUNK,
                SPAN,
            )
            own_Q = state + (queries_Q * spans + span // SPAN) * (PADDED + 2)
            _store_state(
                own_Q, there_Q, span_top_Q, tl.max(span_mass_OQ, 0), tl.trans(span_sum_DQ), PADDED
            )


@triton.jit
def _merge_spans(
    state,
    lengths,
    out,
    scale,
    spans,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    SPAN: tl.constexpr,
):
    """What `_merge` makes of the spans of one query, in order, from the states that programs of `_decode` stored."""
    row, dims_D = tl.program_id(0), tl.arange(0, PADDED)
    query = row.to(tl.int64) * HEADS + tl.program_id(1)
    top, mass, sum_D = -float("inf"), 0.0, tl.zeros([PADDED], tl.float32)
    for span in range(0, tl.cdiv(tl.load(lengths + row), SPAN)):
        own = state + (query * spans + span) * (PADDED + 2)
        new, shrink, span_shrink = shrinks(top, tl.load(own + PADDED), scale)
        mass = mass * shrink + tl.load(own + PADDED + 1) * span_shrink
        sum_D = sum_D * shrink + tl.load(own + dims_D) * span_shrink
        top = new
    tl.store(
        out + query * SIZE + dims_D, (sum_D / mass).to(out.dtype.element_ty), mask=dims_D < SIZE
    )


@triton.jit
def _prefix(
    q,
    keys,
    values,
    block_table,
    members,
    shared,
    state,
    block_table_stride,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    SPAN: tl.constexpr,
    MEMBERS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The states of every row of a group after the whole chunks that they share: of whole spans, and of the rest."""
    group, kv_head = tl.program_id(0), tl.program_id(1)
    first_row = tl.load(members + group * MEMBERS)
    if first_row >= 0:
        end = tl.load(shared + first_row) // CHUNK * CHUNK
        index_Q, dims_D = tl.arange(0, ROWS), tl.arange(0, PADDED)
        rows_Q = tl.load(
            members + group * MEMBERS + index_Q // GROUP, mask=index_Q < MEMBERS * GROUP, other=-1
        )
        there_Q = rows_Q >= 0
        queries_Q = rows_Q.to(tl.int64) * HEADS + kv_head * GROUP + index_Q % GROUP
        q_QD = tl.load(
            q + queries_Q[:, None] * SIZE + dims_D[None, :],
            mask=there_Q[:, None] & (dims_D < SIZE)[None, :],
            other=0.0,
        )
        row_blocks = block_table + first_row.to(tl.int64) * block_table_stride
        seen_QN = tl.full([ROWS, CHUNK], 1, tl.int1)
        top_Q, mass_Q, sum_QD = nothing(ROWS, PADDED)
        span_top_Q, span_mass_QO, span_sum_QD = empty(ROWS, PADDED)
        for chunk in range(0, end, CHUNK):
            if (chunk > 0) & (chunk % SPAN == 0):
                top_Q, mass_Q, sum_QD = merge(
                    top_Q, mass_Q, sum_QD, span_top_Q, span_mass_QO, span_sum_QD, scale
                )
                span_top_Q, span_mass_QO, span_sum_QD = empty(ROWS, PADDED)
            k_ND, v_ND = _load_paged(
                keys,
                values,
                row_blocks,
                chunk,
                end,
                kv_head,
                BLOCK_SIZE,
                KV_HEADS,
                SIZE,
                PADDED,
                CHUNK,
            )
            span_top_Q, span_mass_QO, span_sum_QD = add_chunk(
                q_QD, k_ND, v_ND, seen_QN, span_top_Q, span_mass_QO, span_sum_QD, scale
            )
        if (end > 0) & (end % SPAN == 0):  # the last span is whole
            top_Q, mass_Q, sum_QD = merge(
                top_Q, mass_Q, sum_QD, span_top_Q, span_mass_QO, span_sum_QD, scale
            )
        own_Q = state + queries_Q * (2 * PADDED + 4)
        _store_state(own_Q, there_Q, top_Q, mass_Q, sum_QD, PADDED)
        _store_state(
            own_Q + PADDED + 2, there_Q, span_top_Q, tl.max(span_mass_QO, 1), span_sum_QD, PADDED
        )
