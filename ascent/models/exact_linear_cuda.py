"""Linear layers on CUDA whose bits do not depend on the batch, in Triton.

An output is the sum over K in steps of DEPTH, in order, on one kind of tensor-core instruction (64 rows at a time), so
how many rows there are and how rows and columns are tiled does not change its bits. Nothing is split over K but fixed
segments: where K > LONG, each SEGMENT of K is summed on its own and the sums are added in order. Training does this
inside one program; a decode step, which has few rows, runs the segments as programs of their own.

The backward pass is two ordinary products: it is deterministic, but not independent of the batch.

Axes: M rows, N outputs, K inputs, S segments.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton.tools.tensor_descriptor import TensorDescriptor

from ascent.models.shared_input import to_keep

DEPTH = 64  # of K per step; never changes with the shape
LONG, SEGMENT = 4096, 2560  # K beyond LONG is summed in segments of this length
SPLIT_ROWS = 256  # up to here segments are programs of their own
PROCESSORS = 132  # of an H100 or H200; only the choice of tiles depends on it
GROUP = 8  # row blocks that run side by side and share their columns in the L2 cache
ALIGNMENT = 16  # bytes, of what a tensor descriptor can address


class Tile(NamedTuple):
    """Rows and columns of a program, its warps and stages, and the share of the peak that it reaches (estimated)."""

    rows: int
    columns: int
    warps: int
    stages: int
    efficiency: float


# All have 64 rows per group of four warps: one kind of instruction. Smaller tiles are for few programs.
TILES = (
    Tile(64, 16, 4, 6, 0.18),
    Tile(64, 32, 4, 6, 0.32),
    Tile(64, 64, 4, 5, 0.5),
    Tile(64, 128, 4, 4, 0.68),
    Tile(128, 128, 8, 4, 0.85),
    Tile(128, 256, 8, 3, 1.0),
)
WIDE_TILE = Tile(64, 32, 4, 2, 1.0)  # float32 (LoRA, scalar heads): one tile for all shapes


def num_segments(depth: int) -> int:
    """Of a sum over `depth` inputs: a function of K alone."""
    return 1 if depth <= LONG else -(-depth // SEGMENT)


@cache
def choose_tile(rows: int, columns: int, depth: int) -> Tile:
    """The tile with the least estimated time: waves of programs times the work of one."""
    segments = num_segments(depth)
    programs = segments if rows <= SPLIT_ROWS else 1

    def cost(tile: Tile) -> float:
        blocks = -(-rows // tile.rows) * -(-columns // tile.columns) * programs
        return -(-blocks // PROCESSORS) * tile.rows * tile.columns / tile.efficiency

    # Two sums of a tile of 128 x 256 would not fit into the registers.
    return min((each for each in TILES if segments == programs or each.columns < 256), key=cost)


def linear(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, differentiable."""
    out: Tensor = _Linear.apply(x, weight_NK, bias_N)
    return out


def wide_linear(x_MK: Tensor, weight_NK: Tensor) -> Tensor:
    """x @ weight.T in float32, differentiable."""
    out: Tensor = _WideLinear.apply(x_MK, weight_NK)
    return out


def forward(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None, *, out: torch.dtype | None = None) -> Tensor:
    """x @ weight.T + bias without a gradient, in the dtype of x or the given one."""
    shape, dtype = (*x.shape[:-1], weight_NK.shape[0]), out or x.dtype
    if x.dtype != weight_NK.dtype:
        x, weight_NK = x.float(), weight_NK.float()
    x_MK = x.reshape(-1, x.shape[-1])
    if not x_MK.shape[0]:
        return x.new_empty(shape, dtype=dtype)
    return multiply(x_MK, weight_NK, bias_N, dtype).view(shape)


def multiply(
    x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, dtype: torch.dtype, tile: Tile | None = None
) -> Tensor:
    """The product, with a given tile or the best one."""
    rows, depth, columns = *x_MK.shape, weight_NK.shape[0]
    wide = x_MK.dtype == torch.float32
    tile = tile or (WIDE_TILE if wide else choose_tile(rows, columns, depth))
    segments = 1 if wide else num_segments(depth)
    splits = segments > 1 and rows <= SPLIT_ROWS
    out_MN = torch.empty(rows, columns, dtype=dtype, device=x_MK.device)
    step = DEPTH // 2 if wide else DEPTH  # 128 bytes
    x_MK, weight_NK = _addressable(x_MK), _addressable(weight_NK)
    depth = x_MK.shape[1]
    operands = (
        TensorDescriptor.from_tensor(x_MK, [tile.rows, step]),
        TensorDescriptor.from_tensor(weight_NK, [tile.columns, step]),
        x_MK if bias_N is None else bias_N,  # the bias is read only with HAS_BIAS
    )
    target = torch.empty(segments, rows, columns, dtype=torch.float32, device=out_MN.device) if splits else out_MN
    blocks = triton.cdiv(rows, tile.rows) * triton.cdiv(columns, tile.columns)
    _linear[(blocks, segments if splits else 1)](
        *operands, target, rows, columns, depth,
        HAS_BIAS=bias_N is not None and not splits, SEGMENTS=segments, SPLITS=splits, SEGMENT=SEGMENT,
        LARGE=target.numel() >= 2**31, WIDE=wide, GROUP=GROUP, ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=step,
        num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=False,
    )  # fmt: skip
    if splits:
        _add_segments[(rows, triton.cdiv(columns, 1024))](
            target, operands[2], out_MN, rows, columns,
            HAS_BIAS=bias_N is not None, SEGMENTS=segments, BLOCK=1024, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out_MN


def _addressable(x: Tensor) -> Tensor:
    """Rows that a tensor descriptor can address; zeros behind K do not change a sum."""
    per_row = ALIGNMENT // x.element_size()
    if x.shape[1] % per_row:
        return F.pad(x, (0, per_row - x.shape[1] % per_row))
    fits = x.stride(1) == 1 and x.stride(0) % per_row == 0 and x.stride(0) >= x.shape[1]
    return x if fits and x.data_ptr() % ALIGNMENT == 0 else x.clone(memory_format=torch.contiguous_format)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
        kept, ctx.recompute = to_keep(x)
        ctx.save_for_backward(weight_NK, *kept)
        return forward(x, weight_NK, bias_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        weight_NK, *kept = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        d_MN = d_out.flatten(0, -2)
        d_x = (d_MN @ weight_NK).view(*d_out.shape[:-1], -1) if needs_x else None
        d_weight = d_MN.mT @ ctx.recompute(*kept).flatten(0, -2) if needs_weight else None
        return d_x, d_weight, d_MN.sum(0) if needs_bias else None


class _WideLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, weight_NK: Tensor) -> Tensor:
        ctx.save_for_backward(x_MK, weight_NK)
        return forward(x_MK, weight_NK, out=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_MN: Tensor) -> tuple[Tensor | None, ...]:
        x_MK, weight_NK = ctx.saved_tensors
        d_x = (d_MN @ weight_NK.float()).to(x_MK.dtype) if ctx.needs_input_grad[0] else None
        d_weight = (d_MN.mT @ x_MK.float()).to(weight_NK.dtype) if ctx.needs_input_grad[1] else None
        return d_x, d_weight


@triton.jit
def _sum(x, weight, row, column, first, last, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
         DEPTH: tl.constexpr):  # fmt: skip
    """The sum over K from `first` to `last`. Behind the end of K a descriptor gives zeros."""
    sum_MN = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for k in range(first, last, DEPTH):
        a_MK, b_NK = x.load([row, k]), weight.load([column, k])
        sum_MN = tl.dot(a_MK, b_NK.T, sum_MN, input_precision="ieee" if WIDE else "tf32")  # of float32 inputs
    return sum_MN


@triton.jit
def _linear(
    x, weight, bias, out, rows, columns, depth,
    HAS_BIAS: tl.constexpr, SEGMENTS: tl.constexpr, SPLITS: tl.constexpr, SEGMENT: tl.constexpr, LARGE: tl.constexpr,
    WIDE: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    row_blocks, column_blocks = tl.cdiv(rows, ROWS), tl.cdiv(columns, COLUMNS)
    group = tl.program_id(0) // (GROUP * column_blocks)
    in_group = tl.program_id(0) % (GROUP * column_blocks)
    height = tl.minimum(row_blocks - group * GROUP, GROUP)
    row = (group * GROUP + in_group % height) * ROWS
    column = in_group // height * COLUMNS
    if SEGMENTS == 1:
        sum_MN = _sum(x, weight, row, column, 0, depth, WIDE, ROWS, COLUMNS, DEPTH)
    elif SPLITS:
        first = tl.program_id(1) * SEGMENT
        sum_MN = _sum(x, weight, row, column, first, tl.minimum(first + SEGMENT, depth), WIDE, ROWS, COLUMNS, DEPTH)
    else:
        sum_MN = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for segment in range(SEGMENTS):
            last = tl.minimum((segment + 1) * SEGMENT, depth)
            sum_MN += _sum(x, weight, row, column, segment * SEGMENT, last, WIDE, ROWS, COLUMNS, DEPTH)
    rows_M, columns_N = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    if HAS_BIAS:
        sum_MN += tl.load(bias + columns_N, mask=columns_N < columns, other=0.0).to(tl.float32)[None, :]
    places_M = rows_M.to(tl.int64) * columns if LARGE else rows_M * columns
    if SPLITS:
        out += tl.program_id(1).to(tl.int64) * rows * columns
    inside_MN = (rows_M < rows)[:, None] & (columns_N < columns)[None, :]
    tl.store(out + places_M[:, None] + columns_N[None, :], sum_MN.to(out.dtype.element_ty), mask=inside_MN)


@triton.jit
def _add_segments(parts, bias, out, rows, columns, HAS_BIAS: tl.constexpr, SEGMENTS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns_N = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there_N = columns_N < columns
    sum_N = tl.zeros((BLOCK,), dtype=tl.float32)  # from 0, as in `_linear`
    for segment in range(SEGMENTS):
        sum_N += tl.load(parts + (segment * rows + row) * columns + columns_N, mask=there_N, other=0.0)
    if HAS_BIAS:
        sum_N += tl.load(bias + columns_N, mask=there_N, other=0.0).to(tl.float32)
    tl.store(out + row * columns + columns_N, sum_N.to(out.dtype.element_ty), mask=there_N)
