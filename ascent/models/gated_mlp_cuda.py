"""The gated part of an MLP on CUDA: down(silu(gate) * up), with one Triton kernel each way.

The activation that the down projection reads is not kept for its backward pass but computed again from gate and up,
which saves a quarter of a layer's memory. Rounds where the stock modules round.

Axes: N tokens, I intermediate size, D hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 1024
TOLERANCE = 2**-6  # of the largest output: the product may be summed in another order


@torch.no_grad()
def is_silu_mlp(stock: Any, module: Any, x: Tensor) -> bool:
    """Whether the stock forward is down(silu(gate) * up): its activation compared on a range, the rest on one token."""
    range_N = torch.linspace(-8, 8, 65, dtype=x.dtype, device=x.device)
    if not torch.allclose(module.act_fn(range_N), F.silu(range_N), atol=2**-7):
        return False
    x_D = x.flatten(0, -2)[:1]
    expected, found = stock(module, x_D), module.down_proj(silu_mul(module.gate_proj(x_D), module.up_proj(x_D)))
    return bool((expected - found).abs().max() <= TOLERANCE * expected.abs().max())


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    out: Tensor = _SiluMul.apply(gate, up)
    return out


def gated_down(gate: Tensor, up: Tensor, weight_DI: Tensor) -> Tensor:
    """(silu(gate) * up) @ weight.T."""
    out: Tensor = _GatedDown.apply(gate, up, weight_DI)
    return out


class _SiluMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return _activation(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor]:
        return _gradients(d_out, *ctx.saved_tensors)


class _GatedDown(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight_DI: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up, weight_DI)
        return F.linear(_activation(gate, up), weight_DI)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, weight_DI = ctx.saved_tensors
        d_weight = None
        if ctx.needs_input_grad[2]:
            d_weight = d_out.flatten(0, -2).mT @ _activation(gate, up).flatten(0, -2)
        return *_gradients(d_out @ weight_DI, gate, up), d_weight


def _activation(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.contiguous(), up.contiguous()
    out = torch.empty_like(gate)
    _silu_mul[(triton.cdiv(out.numel(), BLOCK),)](gate, up, out, out.numel(), BLOCK=BLOCK, num_warps=4)
    return out


def _gradients(d_out: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    d_out, gate, up = d_out.contiguous(), gate.contiguous(), up.contiguous()
    d_gate, d_up = torch.empty_like(gate), torch.empty_like(up)
    count = gate.numel()
    _silu_mul_backward[(triton.cdiv(count, BLOCK),)](
        d_out, gate, up, d_gate, d_up, count, BLOCK=BLOCK, num_warps=4
    )  # fmt: skip
    return d_gate, d_up


@triton.jit
def _silu_mul(gate, up, out, count, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = places < count
    g = tl.load(gate + places, mask=there, other=0.0).to(tl.float32)
    u = tl.load(up + places, mask=there, other=0.0).to(tl.float32)
    silu = (g / (1 + tl.exp(-g))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + places, (silu * u).to(out.dtype.element_ty), mask=there)


@triton.jit
def _silu_mul_backward(d_out, gate, up, d_gate, d_up, count, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = places < count
    d = tl.load(d_out + places, mask=there, other=0.0).to(tl.float32)
    g = tl.load(gate + places, mask=there, other=0.0).to(tl.float32)
    u = tl.load(up + places, mask=there, other=0.0).to(tl.float32)
    sigmoid = 1 / (1 + tl.exp(-g))
    silu = g * sigmoid
    tl.store(d_up + places, (d * silu).to(d_up.dtype.element_ty), mask=there)
    tl.store(d_gate + places, (d * u * (sigmoid + silu * (1 - sigmoid))).to(d_gate.dtype.element_ty), mask=there)
