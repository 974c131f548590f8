"""Attention on CUDA with one order of summation for training, prefill and decode, in Triton.

A query reads its keys in chunks of CHUNK tokens, counted from the first token of its sequence, in order, with an online
softmax. Chunks that a query must not see change nothing: they add products with 0. The chunks of SPAN tokens make a
state of their own; the states of spans are merged, in order. So a row's bits depend neither on its tile of queries, nor
on the blocks of the KV cache, nor on who shares its prompt, nor on whether several programs read a long row.

- Every tile has a multiple of 64 rows on four warps each, also for the one query of a decode step: one instruction.
- The mass of a chunk is a product with ones, not a sum over a tile, whose order would follow the registers.
- Products and sums are not fused but where that is written (`tl.fma`).

Rows that share a prompt read its whole chunks together: the state after them (largest score, mass, weighted sum, of the
merged spans and of the last one; in float32) is stored, and every row goes on from it.

The backward pass is torch's flash kernel in its deterministic form.

Axes: T tokens, B rows, H query heads, K key/value heads, D head size, S slots, P blocks of a row, Q queries of a tile,
N keys of a chunk, G groups of rows, M members of a group.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from ascent.models.paged_attention_cuda import copy_vector
from ascent.models.prefix_groups import MEMBERS, PrefixGroups

CHUNK, SPAN = 64, 256  # keys; they never change with the shape
ROWS = 64  # queries of a tile, four warps
MAX_GROUP_ROWS = 128  # query heads of all members of a group; more do not fit into the registers
PACKED_STAGES, DECODE_STAGES = 2, 3
LOG2_E = 1.4426950408889634


def packed_attention(
    q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, offsets: Tensor, key_offsets: Tensor,
    *, max_queries: int, max_len: int, scaling: float,
) -> Tensor:  # fmt: skip
    """Causal attention inside each sequence; its queries are its last tokens. Differentiable."""
    out_THD: Tensor = _Packed.apply(q_THD, k_TKD, v_TKD, offsets, key_offsets, max_queries, max_len, scaling)
    return out_THD


def packed_forward(
    q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, offsets: Tensor, key_offsets: Tensor, max_queries: int, scaling: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output, and the log-sum-exp of every row (H, T), as the flash kernel lays it out."""
    tokens, heads, size = q_THD.shape
    out_THD = torch.empty(tokens, heads, size, dtype=q_THD.dtype, device=q_THD.device)
    lse_HT = torch.empty(heads, tokens, dtype=torch.float32, device=q_THD.device)
    grid = (triton.cdiv(max_queries, ROWS), offsets.numel() - 1, heads)
    _packed[grid](
        q_THD, k_TKD, v_TKD, offsets, key_offsets, out_THD, lse_HT, tokens, *q_THD.stride()[:2], *k_TKD.stride()[:2],
        *v_TKD.stride()[:2], scaling * LOG2_E, HEADS=heads, GROUP=heads // k_TKD.shape[1], SIZE=size,
        PADDED=triton.next_power_of_2(size), ROWS=ROWS, CHUNK=CHUNK, SPAN=SPAN,
        num_warps=ROWS // 16, num_stages=PACKED_STAGES, enable_fp_fusion=False,
    )  # fmt: skip
    return out_THD, lse_HT


def decode_attention(
    q_BHD: Tensor, keys_SKD: Tensor, values_SKD: Tensor, block_table_BP: Tensor, lengths_B: Tensor,
    *, new_k_BKD: Tensor, new_v_BKD: Tensor, slots_B: Tensor, block_size: int, scaling: float, splits: int = 1,
    prefixes: PrefixGroups | None = None,
) -> Tensor:  # fmt: skip
    """One query per row against its cached tokens: (B, H, D). Its key and value are written to the slots first.

    `splits` programs share a row, if it has as many spans; then rows do not read a prompt together.
    """
    rows, heads, size = q_BHD.shape
    kv_heads, padded = keys_SKD.shape[1], triton.next_power_of_2(size)
    group, spans = heads // kv_heads, triton.cdiv(block_table_BP.shape[1] * block_size, SPAN)
    splits = max(1, min(splits, spans))
    if MEMBERS * group > MAX_GROUP_ROWS or splits > 1:
        prefixes = None
    out_BHD = torch.empty_like(q_BHD)
    sizes: dict[str, Any] = {
        "HEADS": heads, "KV_HEADS": kv_heads, "GROUP": group, "SIZE": size, "PADDED": padded, "BLOCK_SIZE": block_size,
        "CHUNK": CHUNK, "SPAN": SPAN,
    }  # fmt: skip
    tensors = (q_BHD, keys_SKD, values_SKD, block_table_BP)
    state = shared = lengths_B
    if prefixes is not None:
        shared = prefixes.lengths_B
        state = q_BHD.new_empty(rows, heads, 2, padded + 2, dtype=torch.float32)  # of merged spans, and of the last
        queries = max(ROWS, triton.next_power_of_2(MEMBERS * group))
        _prefix[(prefixes.members_GM.shape[0], kv_heads)](
            *tensors, prefixes.members_GM, shared, state, block_table_BP.stride(0), scaling * LOG2_E, **sizes,
            MEMBERS=MEMBERS, ROWS=queries, num_warps=queries // 16, num_stages=DECODE_STAGES, enable_fp_fusion=False,
        )  # fmt: skip
    elif splits > 1:
        state = q_BHD.new_empty(rows, heads, spans, padded + 2, dtype=torch.float32)
    queries = max(ROWS, triton.next_power_of_2(group))
    _decode[(rows, kv_heads, splits)](
        *tensors, lengths_B, shared, state, new_k_BKD, new_v_BKD, slots_B, out_BHD, *new_k_BKD.stride()[:2],
        *new_v_BKD.stride()[:2], block_table_BP.stride(0), scaling * LOG2_E, spans, **sizes,
        CONTINUES=prefixes is not None, WHOLE=splits == 1,
        ROWS=queries, num_warps=queries // 16, num_stages=DECODE_STAGES, enable_fp_fusion=False,
    )  # fmt: skip
    if splits > 1:
        _merge_spans[(rows, heads)](
            state, lengths_B, out_BHD, scaling * LOG2_E, spans, HEADS=heads, SIZE=size, PADDED=padded, SPAN=SPAN,
            num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
    return out_BHD


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, offsets: Tensor, key_offsets: Tensor, *rest: Any
    ) -> Tensor:
        max_queries, max_len, scaling = rest
        # Copies: they may be views of a wider product, which would be kept with them.
        tensors = (q_THD.contiguous(), k_TKD.contiguous(), v_TKD.contiguous(), offsets, key_offsets)
        out_THD, lse_HT = packed_forward(*tensors, max_queries, scaling)
        ctx.save_for_backward(*tensors, out_THD, lse_HT)
        ctx.sizes, ctx.scaling = (max_queries, max_len), scaling
        return out_THD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_THD: Tensor) -> tuple[Tensor | None, ...]:
        q_THD, k_TKD, v_TKD, offsets, key_offsets, out_THD, lse_HT = ctx.saved_tensors
        unused = torch.zeros(2, dtype=torch.int64, device=q_THD.device).view(torch.uint64)  # the state of dropout
        with _deterministic():
            gradients = torch.ops.aten._flash_attention_backward(
                *(d_THD.contiguous(), q_THD, k_TKD, v_TKD, out_THD, lse_HT, offsets, key_offsets, *ctx.sizes, 0.0),
                *(True, unused, unused[0]),
                scale=ctx.scaling, window_size_left=-1, window_size_right=0,
            )  # fmt: skip
        return *gradients, *[None] * 5


@contextmanager
def _deterministic() -> Iterator[None]:
    """The flash kernel adds the gradient of the queries in a fixed order only where this is asked for."""
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(before, warn_only=warns)


@triton.jit
def _add_chunk(q_QD, k_ND, v_ND, seen_QN, top_Q, mass_QO, sum_QD, scale):
    """The state after one more chunk. Scores are in base 2: exp2 is a hardware instruction."""
    scores_QN = tl.where(seen_QN, tl.dot(q_QD, tl.trans(k_ND)), -float("inf"))
    new_Q = tl.maximum(top_Q, tl.max(scores_QN, 1))  # the largest of some numbers, in any order
    base_Q = tl.where(new_Q == -float("inf"), 0.0, new_Q)  # a query that sees nothing of a span: no inf - inf
    scale_QN = tl.zeros_like(scores_QN) + scale
    p_QN = tl.exp2(tl.fma(scores_QN, scale_QN, tl.zeros_like(scores_QN) - (base_Q * scale)[:, None])).to(v_ND.dtype)
    shrink_Q = tl.exp2((top_Q - base_Q) * scale)
    ones_NO = tl.full([k_ND.shape[0], 16], 1.0, tl.float32).to(v_ND.dtype)
    mass_QO = tl.dot(p_QN, ones_NO, mass_QO * shrink_Q[:, None])
    sum_QD = tl.dot(p_QN, v_ND, sum_QD * shrink_Q[:, None])
    return new_Q, mass_QO, sum_QD


@triton.jit
def _empty(ROWS: tl.constexpr, PADDED: tl.constexpr):
    """The state before any key: largest score, mass (in 16 equal columns), weighted sum."""
    top_Q = tl.full([ROWS], -float("inf"), tl.float32)
    return top_Q, tl.zeros([ROWS, 16], tl.float32), tl.zeros([ROWS, PADDED], tl.float32)


@triton.jit
def _nothing(ROWS: tl.constexpr, PADDED: tl.constexpr):
    """The state of no span."""
    top_Q = tl.full([ROWS], -float("inf"), tl.float32)
    return top_Q, tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, PADDED], tl.float32)


@triton.jit
def _shrinks(top, span_top, scale):
    """The new largest score, and the factors of both masses. The first span has a token that every query sees."""
    new = tl.maximum(top, span_top)
    return new, tl.exp2((top - new) * scale), tl.exp2((span_top - new) * scale)


@triton.jit
def _merge(top_Q, mass_Q, sum_QD, span_top_Q, span_mass_QO, span_sum_QD, scale):
    """The state of some spans and the next one. Of theirs one column of the mass is kept: all are equal."""
    new_Q, shrink_Q, span_shrink_Q = _shrinks(top_Q, span_top_Q, scale)
    mass_Q = mass_Q * shrink_Q + tl.max(span_mass_QO, 1) * span_shrink_Q
    sum_QD = sum_QD * shrink_Q[:, None] + span_sum_QD * span_shrink_Q[:, None]
    return new_Q, mass_Q, sum_QD


@triton.jit
def _packed(
    q, k, v, offsets, key_offsets, out, lse, tokens, q_token, q_head, k_token, k_head, v_token, v_head, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(1), tl.program_id(2)
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest first
    start, first_key = tl.load(offsets + sequence), tl.load(key_offsets + sequence)
    queries = tl.load(offsets + sequence + 1) - start
    keys = tl.load(key_offsets + sequence + 1) - first_key
    if block * ROWS < queries:
        index_Q = block * ROWS + tl.arange(0, ROWS)
        there_Q = index_Q < queries
        dims_D = tl.arange(0, PADDED)
        inside_D = (dims_D < SIZE)[None, :]
        tokens_Q = (start + index_Q).to(tl.int64)
        q_QD = tl.load(
            q + tokens_Q[:, None] * q_token + head * q_head + dims_D[None, :], mask=there_Q[:, None] & inside_D,
            other=0.0,
        )  # fmt: skip
        positions_Q = keys - queries + index_Q
        top_Q, mass_Q, sum_QD = _nothing(ROWS, PADDED)
        span_top_Q, span_mass_QO, span_sum_QD = _empty(ROWS, PADDED)
        last = tl.minimum(keys - queries + (block + 1) * ROWS, keys)
        for chunk in range(0, last, CHUNK):  # one loop, so that loads run ahead over the ends of spans
            if (chunk > 0) & (chunk % SPAN == 0):
                top_Q, mass_Q, sum_QD = _merge(top_Q, mass_Q, sum_QD, span_top_Q, span_mass_QO, span_sum_QD, scale)
                span_top_Q, span_mass_QO, span_sum_QD = _empty(ROWS, PADDED)
            index_N = chunk + tl.arange(0, CHUNK)
            tokens_N = (first_key + index_N).to(tl.int64)
            there_ND = (index_N < keys)[:, None] & inside_D
            k_ND = tl.load(
                k + tokens_N[:, None] * k_token + head // GROUP * k_head + dims_D[None, :], mask=there_ND, other=0.0
            )
            v_ND = tl.load(
                v + tokens_N[:, None] * v_token + head // GROUP * v_head + dims_D[None, :], mask=there_ND, other=0.0
            )
            seen_QN = index_N[None, :] <= positions_Q[:, None]
            span_top_Q, span_mass_QO, span_sum_QD = _add_chunk(
                q_QD, k_ND, v_ND, seen_QN, span_top_Q, span_mass_QO, span_sum_QD, scale
            )
        top_Q, mass_Q, sum_QD = _merge(top_Q, mass_Q, sum_QD, span_top_Q, span_mass_QO, span_sum_QD, scale)
        places_QD = (tokens_Q[:, None] * HEADS + head) * SIZE + dims_D[None, :]
        tl.store(out + places_QD, (sum_QD / mass_Q[:, None]).to(out.dtype.element_ty), mask=there_Q[:, None] & inside_D)
        lse_Q = (top_Q * scale + tl.log2(mass_Q)) * 0.6931471805599453
        tl.store(lse + head.to(tl.int64) * tokens + tokens_Q, lse_Q, mask=there_Q)


@triton.jit
def _load_paged(
    keys, values, row_blocks, chunk, end, kv_head, BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr, PADDED: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Keys and values of a chunk, 0 from token `end` on: what lies there may be anything."""
    index_N, dims_D = chunk + tl.arange(0, CHUNK), tl.arange(0, PADDED)
    if BLOCK_SIZE % CHUNK == 0:  # a chunk lies in one block
        slot = tl.load(row_blocks + chunk // BLOCK_SIZE).to(tl.int64) * BLOCK_SIZE + chunk % BLOCK_SIZE
        slots_N = slot + tl.arange(0, CHUNK)
    else:
        blocks_N = tl.load(row_blocks + index_N // BLOCK_SIZE, mask=index_N < end, other=0).to(tl.int64)
        slots_N = blocks_N * BLOCK_SIZE + index_N % BLOCK_SIZE
    places_ND = (slots_N * KV_HEADS + kv_head)[:, None] * SIZE + dims_D[None, :]
    there_ND = (index_N < end)[:, None] & (dims_D < SIZE)[None, :]
    return tl.load(keys + places_ND, mask=there_ND, other=0.0), tl.load(values + places_ND, mask=there_ND, other=0.0)


@triton.jit
def _add_paged(
    q_QD, keys, values, row_blocks, begin, end, kv_head, top_Q, mass_Q, sum_QD, span_top_Q, span_mass_QO, span_sum_QD,
    scale, BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    CHUNK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Both states, of merged spans and of the last one, after the chunks from `begin` to `end` of a cached row."""
    for chunk in range(begin, end, CHUNK):  # one loop, so that loads run ahead over the ends of spans
        if (chunk > begin) & (chunk % SPAN == 0):
            top_Q, mass_Q, sum_QD = _merge(top_Q, mass_Q, sum_QD, span_top_Q, span_mass_QO, span_sum_QD, scale)
            span_top_Q, span_mass_QO, span_sum_QD = _empty(q_QD.shape[0], PADDED)
        k_ND, v_ND = _load_paged(
            keys, values, row_blocks, chunk, end, kv_head, BLOCK_SIZE, KV_HEADS, SIZE, PADDED, CHUNK
        )
        seen_QN = tl.zeros([q_QD.shape[0], 1], tl.int32) + (chunk + tl.arange(0, CHUNK))[None, :] < end
        span_top_Q, span_mass_QO, span_sum_QD = _add_chunk(
            q_QD, k_ND, v_ND, seen_QN, span_top_Q, span_mass_QO, span_sum_QD, scale
        )
    return top_Q, mass_Q, sum_QD, span_top_Q, span_mass_QO, span_sum_QD


@triton.jit
def _load_state(state_Q, there_Q, PADDED: tl.constexpr):
    """A stored state; that of no key where there is none."""
    sum_QD = tl.load(state_Q[:, None] + tl.arange(0, PADDED)[None, :], mask=there_Q[:, None], other=0.0)
    top_Q = tl.load(state_Q + PADDED, mask=there_Q, other=-float("inf"))
    return top_Q, tl.load(state_Q + PADDED + 1, mask=there_Q, other=0.0), sum_QD


@triton.jit
def _store_state(state_Q, there_Q, top_Q, mass_Q, sum_QD, PADDED: tl.constexpr):
    tl.store(state_Q[:, None] + tl.arange(0, PADDED)[None, :], sum_QD, mask=there_Q[:, None])
    tl.store(state_Q + PADDED, top_Q, mask=there_Q)
    tl.store(state_Q + PADDED + 1, mass_Q, mask=there_Q)


@triton.jit
def _decode(
    q, keys, values, block_table, lengths, shared, state, new_k, new_v, slots, out, new_k_row, new_k_head, new_v_row,
    new_v_head, block_table_stride, scale, spans,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, CHUNK: tl.constexpr, SPAN: tl.constexpr, CONTINUES: tl.constexpr, WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row)
    if (length - 1) // SPAN % tl.num_programs(2) == split:  # this program reads the new token
        slot = (tl.load(slots + row).to(tl.int64) * KV_HEADS + kv_head) * SIZE
        copy_vector(new_k + row * new_k_row + kv_head * new_k_head, keys + slot, SIZE, PADDED)
        copy_vector(new_v + row * new_v_row + kv_head * new_v_head, values + slot, SIZE, PADDED)
        tl.debug_barrier()  # all warps of the program see both
    heads_Q, dims_D = tl.arange(0, ROWS), tl.arange(0, PADDED)
    there_Q = heads_Q < GROUP
    there_QD = there_Q[:, None] & (dims_D < SIZE)[None, :]
    queries_Q = row.to(tl.int64) * HEADS + kv_head * GROUP + heads_Q
    q_QD = tl.load(q + queries_Q[:, None] * SIZE + dims_D[None, :], mask=there_QD, other=0.0)
    row_blocks = block_table + row.to(tl.int64) * block_table_stride
    top_Q, mass_Q, sum_QD = _nothing(ROWS, PADDED)
    if WHOLE:
        begin = 0
        span_top_Q, span_mass_QO, span_sum_QD = _empty(ROWS, PADDED)
        if CONTINUES:  # behind the chunks of a prefix, which may end inside a span
            begin = tl.load(shared + row) // CHUNK * CHUNK
            own_Q = state + queries_Q * (2 * PADDED + 4)
            top_Q, mass_Q, sum_QD = _load_state(own_Q, there_Q & (begin >= SPAN), PADDED)
            own_Q += PADDED + 2
            span_top_Q, span_mass_Q, span_sum_QD = _load_state(own_Q, there_Q & (begin % SPAN > 0), PADDED)
            span_mass_QO += span_mass_Q[:, None]
        top_Q, mass_Q, sum_QD, span_top_Q, span_mass_QO, span_sum_QD = _add_paged(
            q_QD, keys, values, row_blocks, begin, length, kv_head, top_Q, mass_Q, sum_QD, span_top_Q, span_mass_QO,
            span_sum_QD, scale, BLOCK_SIZE, KV_HEADS, SIZE, PADDED, CHUNK, SPAN,
        )  # fmt: skip
        top_Q, mass_Q, sum_QD = _merge(top_Q, mass_Q, sum_QD, span_top_Q, span_mass_QO, span_sum_QD, scale)
        out_QD = (sum_QD / mass_Q[:, None]).to(out.dtype.element_ty)
        tl.store(out + queries_Q[:, None] * SIZE + dims_D[None, :], out_QD, mask=there_QD)
    else:
        for span in range(split * SPAN, length, tl.num_programs(2) * SPAN):
            span_top_Q, span_mass_QO, span_sum_QD = _empty(ROWS, PADDED)
            _, _, _, span_top_Q, span_mass_QO, span_sum_QD = _add_paged(
                q_QD, keys, values, row_blocks, span, tl.minimum(span + SPAN, length), kv_head, top_Q, mass_Q, sum_QD,
                span_top_Q, span_mass_QO, span_sum_QD, scale, BLOCK_SIZE, KV_HEADS, SIZE, PADDED, CHUNK, SPAN,
            )  # fmt: skip
            own_Q = state + (queries_Q * spans + span // SPAN) * (PADDED + 2)
            _store_state(own_Q, there_Q, span_top_Q, tl.max(span_mass_QO, 1), span_sum_QD, PADDED)


@triton.jit
def _merge_spans(
    state, lengths, out, scale, spans,
    HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """What `_merge` makes of the spans of one query, in order, from the states that programs of `_decode` stored."""
    row, dims_D = tl.program_id(0), tl.arange(0, PADDED)
    query = row.to(tl.int64) * HEADS + tl.program_id(1)
    top, mass, sum_D = -float("inf"), 0.0, tl.zeros([PADDED], tl.float32)
    for span in range(0, tl.cdiv(tl.load(lengths + row), SPAN)):
        own = state + (query * spans + span) * (PADDED + 2)
        new, shrink, span_shrink = _shrinks(top, tl.load(own + PADDED), scale)
        mass = mass * shrink + tl.load(own + PADDED + 1) * span_shrink
        sum_D = sum_D * shrink + tl.load(own + dims_D) * span_shrink
        top = new
    tl.store(out + query * SIZE + dims_D, (sum_D / mass).to(out.dtype.element_ty), mask=dims_D < SIZE)


@triton.jit
def _prefix(
    q, keys, values, block_table, members, shared, state, block_table_stride, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, CHUNK: tl.constexpr, SPAN: tl.constexpr, MEMBERS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The states of every row of a group after the whole chunks that they share: of whole spans, and of the rest."""
    group, kv_head = tl.program_id(0), tl.program_id(1)
    first_row = tl.load(members + group * MEMBERS)
    if first_row >= 0:
        end = tl.load(shared + first_row) // CHUNK * CHUNK
        index_Q, dims_D = tl.arange(0, ROWS), tl.arange(0, PADDED)
        rows_Q = tl.load(members + group * MEMBERS + index_Q // GROUP, mask=index_Q < MEMBERS * GROUP, other=-1)
        there_Q = rows_Q >= 0
        queries_Q = rows_Q.to(tl.int64) * HEADS + kv_head * GROUP + index_Q % GROUP
        q_QD = tl.load(
            q + queries_Q[:, None] * SIZE + dims_D[None, :], mask=there_Q[:, None] & (dims_D < SIZE)[None, :], other=0.0
        )
        row_blocks = block_table + first_row.to(tl.int64) * block_table_stride
        own_Q = state + queries_Q * (2 * PADDED + 4)
        top_Q, mass_Q, sum_QD, span_top_Q, span_mass_QO, span_sum_QD = _add_paged(
            q_QD, keys, values, row_blocks, 0, end, kv_head, *_nothing(ROWS, PADDED), *_empty(ROWS, PADDED), scale,
            BLOCK_SIZE, KV_HEADS, SIZE, PADDED, CHUNK, SPAN,
        )  # fmt: skip
        if (end > 0) & (end % SPAN == 0):  # the last span is whole
            top_Q, mass_Q, sum_QD = _merge(top_Q, mass_Q, sum_QD, span_top_Q, span_mass_QO, span_sum_QD, scale)
        _store_state(own_Q, there_Q, top_Q, mass_Q, sum_QD, PADDED)
        _store_state(own_Q + PADDED + 2, there_Q, span_top_Q, tl.max(span_mass_QO, 1), span_sum_QD, PADDED)
