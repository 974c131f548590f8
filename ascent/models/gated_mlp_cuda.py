"""A gated MLP on CUDA: down(silu(gate) * up), with one Triton kernel each way for the activation.

What the down projection reads is not kept for the backward pass but computed again from gate and up, which saves a
quarter of a layer's memory. Rounds where the stock modules round.

Axes: N tokens, I intermediate size, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from ascent.models.shared_input import LinearForward, join, to_keep

BLOCK = 1024
TOLERANCE = 2**-6  # of the largest output: the product may be summed in another order


@torch.no_grad()
def is_silu_mlp(stock: Any, module: Any, x: Tensor) -> bool:
    """Whether the stock forward is down(silu(gate) * up): its activation compared on a range, the rest on one token."""
    range_N = torch.linspace(-8, 8, 65, dtype=x.dtype, device=x.device)
    if not torch.allclose(module.act_fn(range_N), F.silu(range_N), atol=2**-7):
        return False
    x_D = x.flatten(0, -2)[:1]
    expected, found = (
        stock(module, x_D),
        module.down_proj(silu_mul(module.gate_proj(x_D), module.up_proj(x_D))),
    )
    return bool((expected - found).abs().max() <= TOLERANCE * expected.abs().max())


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    out: Tensor = _SiluMul.apply(gate, up)
    return out


def gated_mlp(
    x: Tensor,
    gate_up: Tensor | None,
    gate_ID: Tensor,
    up_ID: Tensor,
    down_DI: Tensor,
    linear: LinearForward = F.linear,
) -> Tensor:
    """(silu(x @ gate.T) * (x @ up.T)) @ down.T. `gate_up` is the view that covers gate and up; without it, they are
    joined here, and again in the backward pass: no copy is kept."""
    out: Tensor = _GatedMLP.apply(x, gate_up, gate_ID, up_ID, down_DI, linear)
    return out


class _SiluMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return _activation(gate.contiguous().flatten(0, -2), up.contiguous().flatten(0, -2)).view(
            gate.shape
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = (each.contiguous() for each in ctx.saved_tensors)
        d_gate, d_up = torch.empty_like(gate), torch.empty_like(up)
        gradients = d_gate.flatten(0, -2), d_up.flatten(0, -2)
        _gradients(
            d_out.contiguous().flatten(0, -2), gate.flatten(0, -2), up.flatten(0, -2), gradients
        )
        return d_gate, d_up


class _GatedMLP(torch.autograd.Function):
    """Keeps gate and up, and its input unless that is recomputed; what the down projection reads is computed again."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        gate_ID: Tensor,
        up_ID: Tensor,
        down_DI: Tensor,
        linear: LinearForward,
    ) -> Tensor:
        weights = (gate_ID, up_ID) if weight is None else (weight,)
        gate_up = linear(x.flatten(0, -2), join(weights), None)
        kept, ctx.recompute = to_keep(x)
        ctx.num_weights = len(weights)
        ctx.save_for_backward(gate_up, down_DI, *weights, *kept)
        out = linear(_activation(*gate_up.chunk(2, -1)), down_DI, None)
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        gate_up, down_DI, *rest = ctx.saved_tensors
        weights, kept = rest[: ctx.num_weights], rest[ctx.num_weights :]
        needs_x, _, needs_gate, needs_up, needs_down, _ = ctx.needs_input_grad
        d_ND, d_gate_up = d_out.flatten(0, -2), torch.empty_like(gate_up)
        d_x, d_gate, d_up, d_down = None, None, None, None
        hidden_NI = (
            gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2) if needs_down else None
        )
        gate_NI, up_NI = gate_up.chunk(2, -1)
        _gradients(d_ND @ down_DI, gate_NI, up_NI, d_gate_up.chunk(2, -1), hidden_NI)
        if hidden_NI is not None:
            d_down = d_ND.mT @ hidden_NI
        if needs_x:
            d_x = (d_gate_up @ join(weights)).view(d_out.shape)
        if needs_gate or needs_up:
            d_gate, d_up = (d_gate_up.mT @ ctx.recompute(*kept).flatten(0, -2)).chunk(2)
        return d_x, None, d_gate, d_up, d_down, None


def _activation(gate_NI: Tensor, up_NI: Tensor) -> Tensor:
    rows, size = gate_NI.shape
    out_NI = torch.empty(rows, size, dtype=gate_NI.dtype, device=gate_NI.device)
    _silu_mul[(rows, triton.cdiv(size, BLOCK))](
        gate_NI, up_NI, out_NI, gate_NI.stride(0), size, BLOCK=BLOCK, num_warps=4
    )
    return out_NI


def _gradients(
    d_NI: Tensor,
    gate_NI: Tensor,
    up_NI: Tensor,
    gradients: Sequence[Tensor],
    hidden_NI: Tensor | None = None,
) -> None:
    """Fill the gradients of gate and up and, if it is given, silu(gate) * up."""
    rows, size = gate_NI.shape
    d_gate_NI, d_up_NI = gradients
    _silu_mul_backward[(rows, triton.cdiv(size, BLOCK))](
        d_NI,
        gate_NI,
        up_NI,
        d_gate_NI,
        d_up_NI,
        d_NI if hidden_NI is None else hidden_NI,
        gate_NI.stride(0),
        d_gate_NI.stride(0),
        size,
        HIDDEN=hidden_NI is not None,
        BLOCK=BLOCK,
        num_warps=4,
    )


@triton.jit
def _silu_mul(gate, up, out, stride, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = columns < size
    g = tl.load(gate + row * stride + columns, mask=there, other=0.0).to(tl.float32)
    u = tl.load(up + row * stride + columns, mask=there, other=0.0).to(tl.float32)
    silu = (g / (1 + tl.exp(-g))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * size + columns, (silu * u).to(out.dtype.element_ty), mask=there)


@triton.jit
def _silu_mul_backward(
    d_out,
    gate,
    up,
    d_gate,
    d_up,
    hidden,
    stride,
    d_stride,
    size,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = columns < size
    kind = d_up.dtype.element_ty
    d = tl.load(d_out + row * size + columns, mask=there, other=0.0).to(tl.float32)
    g = tl.load(gate + row * stride + columns, mask=there, other=0.0).to(tl.float32)
    u = tl.load(up + row * stride + columns, mask=there, other=0.0).to(tl.float32)
    sigmoid = 1 / (1 + tl.exp(-g))
    silu = g * sigmoid
    tl.store(d_up + row * d_stride + columns, (d * silu).to(kind), mask=there)
    d_g = d * u * (sigmoid + silu * (1 - sigmoid))
    tl.store(d_gate + row * d_stride + columns, d_g.to(kind), mask=there)
    if HIDDEN:
        rounded = (g / (1 + tl.exp(-g))).to(kind).to(tl.float32)  # as in `_silu_mul`
        tl.store(hidden + row * size + columns, (rounded * u).to(kind), mask=there)
