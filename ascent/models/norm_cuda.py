"""RMS norms in one Triton kernel each way, on CUDA; without a gradient, together with the residual sum before them.

A stock norm runs seven kernels, and more in its backward pass. This one rounds where the stock norm rounds. A module's
formula is found by comparing its output with both known ones; a module with another formula keeps its stock forward.

Axes: N rows, D size of a row, P programs.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ascent.models.shared_input import recomputable

Formula = Literal["weight * rounded", "rounded (1 + weight)"]
FORMULAS: tuple[Formula, ...] = ("weight * rounded", "rounded (1 + weight)")
TOLERANCE = 2**-7  # one step of bfloat16
PROGRAMS = 512  # of a backward pass; each sums the weight's gradient over its own rows


def known_formula(stock: Any, module: nn.Module) -> tuple[Formula, float] | None:
    """`formula_of`, computed once per module."""
    if not hasattr(module, "formula"):
        module.formula = formula_of(stock, module)  # type: ignore[assignment]
    found: Any = module.formula
    return found


def formula_of(stock: Any, module: nn.Module) -> tuple[Formula, float] | None:
    """The formula and epsilon of a norm, or None if it is unknown."""
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if (
        not isinstance(weight, Tensor)
        or not isinstance(epsilon, float)
        or len(list(module.parameters())) != 1
    ):
        return None
    with torch.no_grad():
        probe = copy.deepcopy(module)
        generator = torch.Generator(weight.device).manual_seed(0)
        spread = torch.empty_like(weight).normal_(0.7, 0.2, generator=generator)
        probe.weight.copy_(spread)  # type: ignore[operator]
        x_ND = torch.empty(3, weight.shape[0], dtype=weight.dtype, device=weight.device).normal_(
            generator=generator
        )
        own_ND = stock(probe, x_ND).float()
        for formula in FORMULAS:
            ours_ND = rms_norm(x_ND, spread, epsilon, formula).float()
            if bool(((ours_ND - own_ND).abs() <= TOLERANCE * own_ND.abs()).all()):
                return formula, epsilon
    return None


def rms_norm(x: Tensor, weight_D: Tensor, epsilon: float, formula: Formula) -> Tensor:
    add_one = formula == FORMULAS[1]
    out: Tensor = _RMSNorm.apply(x, weight_D, epsilon, add_one)
    if not out.requires_grad:
        return out
    return recomputable(
        out, (x, weight_D), lambda x, weight_D: _normalize(x, weight_D, epsilon, add_one)[0]
    )


def add_rms_norm(
    x: Tensor, residual: Tensor, weight_D: Tensor, epsilon: float, formula: Formula
) -> tuple[Tensor, Tensor]:
    """residual + x, and its norm. There is no gradient."""
    total = torch.empty_like(residual, memory_format=torch.contiguous_format)
    return total, _normalize(
        x, weight_D, epsilon, formula == FORMULAS[1], residual.contiguous(), total
    )[0]


def _normalize(
    x: Tensor,
    weight_D: Tensor,
    epsilon: float,
    add_one: bool,
    residual: Tensor | None = None,
    total: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The norm of x, or of residual + x, which is then written to `total`; and the scale of every row."""
    x = x.contiguous()
    out, size = torch.empty_like(x), x.shape[-1]
    rows, padded = x.numel() // size, triton.next_power_of_2(size)
    rows_per_program = max(1, 1024 // padded)
    scale_N = torch.empty(rows, dtype=torch.float32, device=x.device)
    _forward[(triton.cdiv(rows, rows_per_program),)](
        x,
        x if residual is None else residual,
        weight_D,
        out,
        out if total is None else total,
        scale_N,
        rows,
        epsilon,
        SIZE=size,
        PADDED=padded,
        ROWS=rows_per_program,
        ADD_ONE=add_one,
        RESIDUAL=residual is not None,
        num_warps=4 if padded <= 2048 else 8,
    )
    return out, scale_N


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, epsilon: float, add_one: bool) -> Tensor:
        x = x.contiguous()
        out, scale_N = _normalize(x, weight_D, epsilon, add_one)
        ctx.save_for_backward(x, weight_D, scale_N)
        ctx.add_one = add_one
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_D, scale_N = ctx.saved_tensors
        d_out, d_x, size = d_out.contiguous(), torch.empty_like(x), x.shape[-1]
        rows, padded = x.numel() // size, triton.next_power_of_2(size)
        programs = min(PROGRAMS, rows)
        d_weight_PD = torch.empty(programs, size, dtype=torch.float32, device=x.device)
        _backward[(programs,)](
            d_out,
            x,
            weight_D,
            scale_N,
            d_x,
            d_weight_PD,
            rows,
            triton.cdiv(rows, programs),
            SIZE=size,
            PADDED=padded,
            ADD_ONE=ctx.add_one,
            num_warps=4 if padded <= 2048 else 8,
        )
        return d_x, d_weight_PD.sum(0).to(weight_D.dtype), None, None


# Numbers of rows are not specialized, here and in other kernels: one kernel for multiples of 16 and one for the rest
# would be compiled, the second of them in the middle of a run.
@triton.jit(do_not_specialize=["rows"])
def _forward(
    x,
    residual,
    weight,
    out,
    total,
    scales,
    rows,
    epsilon,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    ADD_ONE: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    rows_N = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dims_D = tl.arange(0, PADDED)
    there_ND = (rows_N < rows)[:, None] & (dims_D < SIZE)[None, :]
    places_ND = rows_N[:, None] * SIZE + dims_D[None, :]
    x_ND = tl.load(x + places_ND, mask=there_ND, other=0.0).to(tl.float32)
    if RESIDUAL:  # the norm reads the sum as it is stored, rounded
        sum_ND = (x_ND + tl.load(residual + places_ND, mask=there_ND, other=0.0).to(tl.float32)).to(
            out.dtype.element_ty
        )
        tl.store(total + places_ND, sum_ND, mask=there_ND)
        x_ND = sum_ND.to(tl.float32)
    w_D = tl.load(weight + dims_D, mask=dims_D < SIZE, other=0.0).to(tl.float32)
    scale_N = 1 / tl.sqrt(tl.sum(x_ND * x_ND, 1) / SIZE + epsilon)
    tl.store(scales + rows_N, scale_N, mask=rows_N < rows)
    scaled_ND = x_ND * scale_N[:, None]
    if ADD_ONE:
        scaled_ND = scaled_ND * (1 + w_D)[None, :]
    else:
        scaled_ND = scaled_ND.to(out.dtype.element_ty).to(tl.float32) * w_D[None, :]
    tl.store(out + places_ND, scaled_ND.to(out.dtype.element_ty), mask=there_ND)


@triton.jit(do_not_specialize=["rows", "rows_per_program"])
def _backward(
    d_out,
    x,
    weight,
    scales,
    d_x,
    d_weight,
    rows,
    rows_per_program,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    ADD_ONE: tl.constexpr,
):
    dims_D = tl.arange(0, PADDED)
    there_D = dims_D < SIZE
    w_D = tl.load(weight + dims_D, mask=there_D, other=0.0).to(tl.float32)
    if ADD_ONE:
        w_D += 1
    d_w_D = tl.zeros((PADDED,), dtype=tl.float32)
    first = tl.program_id(0) * rows_per_program
    for row in range(first, tl.minimum(first + rows_per_program, rows)):
        places_D = tl.cast(row, tl.int64) * SIZE + dims_D
        d_D = tl.load(d_out + places_D, mask=there_D, other=0.0).to(tl.float32)
        scale = tl.load(scales + row)
        hat_D = tl.load(x + places_D, mask=there_D, other=0.0).to(tl.float32) * scale
        d_hat_D = d_D * w_D
        d_x_D = scale * (d_hat_D - hat_D * (tl.sum(d_hat_D * hat_D, 0) / SIZE))
        tl.store(d_x + places_D, d_x_D.to(d_x.dtype.element_ty), mask=there_D)
        if not ADD_ONE:
            hat_D = hat_D.to(x.dtype.element_ty).to(tl.float32)
        d_w_D += d_D * hat_D
    tl.store(d_weight + tl.program_id(0).to(tl.int64) * SIZE + dims_D, d_w_D, mask=there_D)
