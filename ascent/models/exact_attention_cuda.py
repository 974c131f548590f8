"""Attention of packed sequences on CUDA, for training and prefill, with the order of summation that decoding has too.

A query reads its keys in chunks of CHUNK tokens, counted from the first token of its sequence, in order, with an online
softmax. Chunks that a query must not see change nothing: they add products with 0. The chunks of SPAN tokens make a
state of their own; the states of spans are merged, in order. So a row's bits depend neither on its tile of queries, nor
on the blocks of the KV cache, nor on who shares its prompt, nor on whether several programs read a long row.

- Every product has 64 rows on four warps: one instruction. A tile has 64 queries here; the few of a decode step are the
  columns instead (`exact_decode_cuda`), which changes neither the products nor their order.
- The mass of a chunk is a product with ones, not a sum over a tile, whose order would follow the registers.
- Products and sums are not fused but where that is written (`tl.fma`).

The backward pass is torch's flash kernel in its deterministic form.

Axes: T tokens, H query heads, K key/value heads, D head size, Q queries of a tile, N keys of a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from ascent.models.flash_attention import flash_backward
from ascent.models.paged_attention_cuda import pad_for_dot

CHUNK, SPAN = 64, 256  # keys; they never change with the shape
PRODUCT_ROWS = 64  # of the instruction, on four warps
ROWS = 64  # queries of a tile
STAGES = 2
LOG2_E = 1.4426950408889634


def packed_attention(
    q_THD: Tensor,
    k_TKD: Tensor,
    v_TKD: Tensor,
    offsets: Tensor,
    key_offsets: Tensor,
    *,
    max_queries: int,
    max_len: int,
    scaling: float,
) -> Tensor:
    """Causal attention inside each sequence; its queries are its last tokens. Differentiable."""
    out_THD: Tensor = _Packed.apply(
        q_THD, k_TKD, v_TKD, offsets, key_offsets, max_queries, max_len, scaling
    )
    return out_THD


def packed_forward(
    q_THD: Tensor,
    k_TKD: Tensor,
    v_TKD: Tensor,
    offsets: Tensor,
    key_offsets: Tensor,
    max_queries: int,
    scaling: float,
) -> tuple[Tensor, Tensor]:
    """The output, and the log-sum-exp of every row (H, T), as the flash kernel lays it out."""
    tokens, heads, size = q_THD.shape
    out_THD = torch.empty(tokens, heads, size, dtype=q_THD.dtype, device=q_THD.device)
    lse_HT = torch.empty(heads, tokens, dtype=torch.float32, device=q_THD.device)
    grid = (triton.cdiv(max_queries, ROWS), offsets.numel() - 1, heads)
    _packed[grid](
        q_THD,
        k_TKD,
        v_TKD,
        offsets,
        key_offsets,
        out_THD,
        lse_HT,
        tokens,
        *q_THD.stride()[:2],
        *k_TKD.stride()[:2],
        *v_TKD.stride()[:2],
        scaling * LOG2_E,
        HEADS=heads,
        GROUP=heads // k_TKD.shape[1],
        SIZE=size,
        PADDED=pad_for_dot(size),
        ROWS=ROWS,
        CHUNK=CHUNK,
        SPAN=SPAN,
        num_warps=ROWS // 16,
        num_stages=STAGES,
        enable_fp_fusion=False,
    )
    return out_THD, lse_HT


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_THD: Tensor,
        k_TKD: Tensor,
        v_TKD: Tensor,
        offsets: Tensor,
        key_offsets: Tensor,
        *rest: Any,
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
        unused = torch.zeros(2, dtype=torch.int64, device=q_THD.device).view(
            torch.uint64
        )  # the state of dropout
        gradients = flash_backward(
            *(
                d_THD.contiguous(),
                q_THD,
                k_TKD,
                v_TKD,
                out_THD,
                lse_HT,
                offsets,
                key_offsets,
                *ctx.sizes,
                0.0,
            ),
            *(True, unused, unused[0]),
            scale=ctx.scaling,
            window_size_left=-1,
            window_size_right=0,
        )
        return *gradients, *[None] * 5


@triton.jit
def add_chunk(q_QD, k_ND, v_ND, seen_QN, top_Q, mass_QO, sum_QD, scale):
    """The state after one more chunk. Scores are in base 2: exp2 is a hardware instruction."""
    scores_QN = tl.where(seen_QN, tl.dot(q_QD, tl.trans(k_ND)), -float("inf"))
    new_Q = tl.maximum(top_Q, tl.max(scores_QN, 1))  # the largest of some numbers, in any order
    base_Q = tl.where(
        new_Q == -float("inf"), 0.0, new_Q
    )  # a query that sees nothing of a span: no inf - inf
    scale_QN = tl.zeros_like(scores_QN) + scale
    p_QN = tl.exp2(
        tl.fma(scores_QN, scale_QN, tl.zeros_like(scores_QN) - (base_Q * scale)[:, None])
    ).to(v_ND.dtype)
    shrink_Q = tl.exp2((top_Q - base_Q) * scale)
    ones_NO = tl.full([k_ND.shape[0], 16], 1.0, tl.float32).to(v_ND.dtype)
    mass_QO = tl.dot(p_QN, ones_NO, mass_QO * shrink_Q[:, None])
    sum_QD = tl.dot(p_QN, v_ND, sum_QD * shrink_Q[:, None])
    return new_Q, mass_QO, sum_QD


@triton.jit
def empty(ROWS: tl.constexpr, PADDED: tl.constexpr):
    """The state before any key: largest score, mass (in 16 equal columns), weighted sum."""
    top_Q = tl.full([ROWS], -float("inf"), tl.float32)
    return top_Q, tl.zeros([ROWS, 16], tl.float32), tl.zeros([ROWS, PADDED], tl.float32)


@triton.jit
def nothing(ROWS: tl.constexpr, PADDED: tl.constexpr):
    """The state of no span."""
    top_Q = tl.full([ROWS], -float("inf"), tl.float32)
    return top_Q, tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, PADDED], tl.float32)


@triton.jit
def shrinks(top, span_top, scale):
    """The new largest score, and the factors of both masses. The first span has a token that every query sees."""
    new = tl.maximum(top, span_top)
    return new, tl.exp2((top - new) * scale), tl.exp2((span_top - new) * scale)


@triton.jit
def merge(top_Q, mass_Q, sum_QD, span_top_Q, span_mass_QO, span_sum_QD, scale):
    """The state of some spans and the next one. Of theirs one column of the mass is kept: all are equal."""
    new_Q, shrink_Q, span_shrink_Q = shrinks(top_Q, span_top_Q, scale)
    mass_Q = mass_Q * shrink_Q + tl.max(span_mass_QO, 1) * span_shrink_Q
    sum_QD = sum_QD * shrink_Q[:, None] + span_sum_QD * span_shrink_Q[:, None]
    return new_Q, mass_Q, sum_QD


@triton.jit
def _packed(
    q,
    k,
    v,
    offsets,
    key_offsets,
    out,
    lse,
    tokens,
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    SPAN: tl.constexpr,
):
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
            q + tokens_Q[:, None] * q_token + head * q_head + dims_D[None, :],
            mask=there_Q[:, None] & inside_D,
            other=0.0,
        )
        positions_Q = keys - queries + index_Q
        top_Q, mass_Q, sum_QD = nothing(ROWS, PADDED)
        span_top_Q, span_mass_QO, span_sum_QD = empty(ROWS, PADDED)
        last = tl.minimum(keys - queries + (block + 1) * ROWS, keys)
        for chunk in range(
            0, last, CHUNK
        ):  # one loop, so that loads run ahead over the ends of spans
            if (chunk > 0) & (chunk % SPAN == 0):
                top_Q, mass_Q, sum_QD = merge(
                    top_Q, mass_Q, sum_QD, span_top_Q, span_mass_QO, span_sum_QD, scale
                )
                span_top_Q, span_mass_QO, span_sum_QD = empty(ROWS, PADDED)
            index_N = chunk + tl.arange(0, CHUNK)
            tokens_N = (first_key + index_N).to(tl.int64)
            there_ND = (index_N < keys)[:, None] & inside_D
            k_ND = tl.load(
                k + tokens_N[:, None] * k_token + head // GROUP * k_head + dims_D[None, :],
                mask=there_ND,
                other=0.0,
            )
            v_ND = tl.load(
                v + tokens_N[:, None] * v_token + head // GROUP * v_head + dims_D[None, :],
                mask=there_ND,
                other=0.0,
            )
            seen_QN = index_N[None, :] <= positions_Q[:, None]
            span_top_Q, span_mass_QO, span_sum_QD = add_chunk(
                q_QD, k_ND, v_ND, seen_QN, span_top_Q, span_mass_QO, span_sum_QD, scale
            )
        top_Q, mass_Q, sum_QD = merge(
            top_Q, mass_Q, sum_QD, span_top_Q, span_mass_QO, span_sum_QD, scale
        )
        places_QD = (tokens_Q[:, None] * HEADS + head) * SIZE + dims_D[None, :]
        tl.store(
            out + places_QD,
            (sum_QD / mass_Q[:, None]).to(out.dtype.element_ty),
            mask=there_Q[:, None] & inside_D,
        )
        lse_Q = (top_Q * scale + tl.log2(mass_Q)) * 0.6931471805599453
        tl.store(lse + head.to(tl.int64) * tokens + tokens_Q, lse_Q, mask=there_Q)
