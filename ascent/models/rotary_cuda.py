"""Rotary embedding of queries and keys in one Triton kernel, on CUDA, forward and backward.

The stock function runs ten kernels per layer. This one rounds in the same places, so the bits are the same.

Axes: T tokens, H heads, D size of what is rotated, C half of it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable


def can_rotate(q: Tensor, k: Tensor, cos: Tensor) -> bool:
    """Are these (1, heads, T, D) queries and keys and (1, T, D) angles of one dtype?"""
    flat = q.ndim == k.ndim == 4 and cos.ndim == 3 and q.shape[0] == k.shape[0] == cos.shape[0] == 1
    return (
        flat
        and q.shape[-1] == k.shape[-1] == cos.shape[-1]
        and q.shape[-1] % 2 == 0
        and q.dtype == cos.dtype
    )


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    q, k = _Rotate.apply(q, k, cos.contiguous(), sin.contiguous())
    return q, k


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        return _run(q, k, cos, sin, backward=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_q: Tensor, d_k: Tensor) -> tuple[Tensor | None, ...]:
        return *_run(d_q, d_k, *ctx.saved_tensors, backward=True), None, None


def _run(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, backward: bool
) -> tuple[Tensor, Tensor]:
    tokens, size = q.shape[2:]
    q_out, k_out = (
        torch.empty(1, tokens, x.shape[1], size, dtype=x.dtype, device=x.device) for x in (q, k)
    )
    _rotate[(tokens,)](
        q,
        k,
        cos,
        sin,
        q_out,
        k_out,
        *q.stride()[1:],
        *k.stride()[1:],
        BACKWARD=backward,
        Q_HEADS=q.shape[1],
        K_HEADS=k.shape[1],
        Q_PADDED=triton.next_power_of_2(q.shape[1]),
        K_PADDED=triton.next_power_of_2(k.shape[1]),
        HALF=size // 2,
        HALF_PADDED=triton.next_power_of_2(size // 2),
        num_warps=4,
        enable_fp_fusion=False,
    )
    return q_out.transpose(1, 2), k_out.transpose(1, 2)


@triton.jit
def _rotate_heads(
    x,
    out,
    token,
    cos1_C,
    cos2_C,
    sin1_C,
    sin2_C,
    head_stride,
    token_stride,
    dim_stride,
    HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
):
    kind = out.dtype.element_ty
    heads_H, dims_C = tl.arange(0, HEADS_PADDED), tl.arange(0, HALF_PADDED)
    there_HC = (heads_H < HEADS)[:, None] & (dims_C < HALF)[None, :]
    places_HC = token * token_stride + heads_H[:, None] * head_stride + dims_C[None, :] * dim_stride
    x1_HC = tl.load(x + places_HC, mask=there_HC, other=0.0).to(tl.float32)
    x2_HC = tl.load(x + places_HC + HALF * dim_stride, mask=there_HC, other=0.0).to(tl.float32)
    # Every product and sum is rounded, as in separate kernels.
    first_HC = (x1_HC * cos1_C[None, :]).to(kind).to(tl.float32) + (-x2_HC * sin1_C[None, :]).to(
        kind
    ).to(tl.float32)
    second_HC = (x2_HC * cos2_C[None, :]).to(kind).to(tl.float32) + (x1_HC * sin2_C[None, :]).to(
        kind
    ).to(tl.float32)
    lines_HC = (token * HEADS + heads_H[:, None]) * 2 * HALF + dims_C[None, :]
    tl.store(out + lines_HC, first_HC.to(kind), mask=there_HC)
    tl.store(out + lines_HC + HALF, second_HC.to(kind), mask=there_HC)


@triton.jit
def _rotate(
    q,
    k,
    cos,
    sin,
    q_out,
    k_out,
    q_head,
    q_token,
    q_dim,
    k_head,
    k_token,
    k_dim,
    BACKWARD: tl.constexpr,
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    Q_PADDED: tl.constexpr,
    K_PADDED: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    dims_C = tl.arange(0, HALF_PADDED)
    there_C = dims_C < HALF
    angle = token * 2 * HALF + dims_C
    cos1_C = tl.load(cos + angle, mask=there_C, other=0.0).to(tl.float32)
    cos2_C = tl.load(cos + angle + HALF, mask=there_C, other=0.0).to(tl.float32)
    sin1_C = tl.load(sin + angle, mask=there_C, other=0.0).to(tl.float32)
    sin2_C = tl.load(sin + angle + HALF, mask=there_C, other=0.0).to(tl.float32)
    if BACKWARD:  # the transposed rotation
        sin1_C, sin2_C = -sin2_C, -sin1_C
    _rotate_heads(
        q,
        q_out,
        token,
        cos1_C,
        cos2_C,
        sin1_C,
        sin2_C,
        q_head,
        q_token,
        q_dim,
        Q_HEADS,
        Q_PADDED,
        HALF,
        HALF_PADDED,
    )
    _rotate_heads(
        k,
        k_out,
        token,
        cos1_C,
        cos2_C,
        sin1_C,
        sin2_C,
        k_head,
        k_token,
        k_dim,
        K_HEADS,
        K_PADDED,
        HALF,
        HALF_PADDED,
    )
