"""Linear layers on CUDA whose bits do not depend on the batch: cuBLAS where it is seen to have these bits, else Triton.

An output is the sum over K in steps of DEPTH, in order, on one kind of tensor-core instruction (64 rows at a time), so
how many rows there are and how rows and columns are tiled does not change its bits. cuBLAS sums in the same order, and
is faster, unless it splits K, which it decides by the shape. So each shape is compared once, on random numbers, and
cuBLAS is used where no bit differs.

The backward pass is two ordinary products: it is deterministic, but not independent of the batch.

Axes: M rows, N outputs, K inputs.
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
PROCESSORS = 132  # of an H100 or H200; only the choice of tiles depends on it
GROUP = 8  # row blocks that run side by side and share their columns in the L2 cache
ALIGNMENT = 16  # bytes, of what a tensor descriptor can address
STOCK_ROWS = 512  # cuBLAS gets multiples of this, so that few shapes must be compared
COMPARED = (
    2**18
)  # outputs at least: in another order of summation about one of 300 differs in bfloat16


class Tile(NamedTuple):
    """Rows and columns of a program, its warps and stages, and the share of the peak that it reaches (estimated)."""

    rows: int
    columns: int
    warps: int
    stages: int
    efficiency: float


# All have 64 rows per group of four warps: one kind of instruction. Smaller tiles are for few programs.
# They have many stages, because a program alone must keep many loads in flight.
TILES = (
    Tile(64, 16, 4, 16, 0.18),
    Tile(64, 32, 4, 14, 0.32),
    Tile(64, 64, 4, 10, 0.5),
    Tile(64, 128, 4, 4, 0.68),
    Tile(128, 128, 8, 4, 0.85),
    Tile(128, 256, 8, 3, 1.0),
)
WIDE_TILE = Tile(64, 32, 4, 2, 1.0)  # float32 (LoRA, scalar heads): one tile for all shapes


@cache
def choose_tile(rows: int, columns: int) -> Tile:
    """The tile with the least estimated time: waves of programs times the work of one."""

    def cost(tile: Tile) -> float:
        blocks = -(-rows // tile.rows) * -(-columns // tile.columns)
        return -(-blocks // PROCESSORS) * tile.rows * tile.columns / tile.efficiency

    return min(TILES, key=cost)


def linear(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, differentiable."""
    out: Tensor = _Linear.apply(x, weight_NK, bias_N)
    return out


def wide_linear(x_MK: Tensor, weight_NK: Tensor) -> Tensor:
    """x @ weight.T in float32, differentiable."""
    out: Tensor = _WideLinear.apply(x_MK, weight_NK)
    return out


def forward(
    x: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None, *, out: torch.dtype | None = None
) -> Tensor:
    """x @ weight.T + bias without a gradient, in the dtype of x or the given one."""
    shape, dtype = (*x.shape[:-1], weight_NK.shape[0]), out or x.dtype
    if x.dtype != weight_NK.dtype:
        x, weight_NK = x.float(), weight_NK.float()
    x_MK = x.reshape(-1, x.shape[-1])
    if not x_MK.shape[0]:
        return x.new_empty(shape, dtype=dtype)
    return multiply(x_MK, weight_NK, bias_N, dtype).view(shape)


def multiply(x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The product: whole blocks of rows by cuBLAS where that has the same bits, the rest by Triton."""
    (rows, depth), columns = x_MK.shape, weight_NK.shape[0]
    stock = stock_rows(rows) if _fits_stock(x_MK, weight_NK, bias_N, dtype) else 0
    if stock and not stock_is_equal(
        Shape(stock, columns, depth, dtype, bias_N is not None), x_MK.device
    ):
        stock = 0
    if stock == rows:
        return stock_product(x_MK, weight_NK, bias_N, dtype)
    out_MN = torch.empty(rows, columns, dtype=dtype, device=x_MK.device)
    if stock:
        stock_product(x_MK[:stock], weight_NK, bias_N, dtype, out_MN[:stock])
    triton_product(x_MK[stock:], weight_NK, bias_N, out_MN[stock:])
    return out_MN


class Shape(NamedTuple):
    """What cuBLAS chooses a kernel by."""

    rows: int
    columns: int
    depth: int
    dtype: torch.dtype  # of the output
    has_bias: bool


def stock_rows(rows: int) -> int:
    """How many of these rows cuBLAS may get: one of few numbers, among them the batch sizes of a decode step."""
    if rows >= STOCK_ROWS:
        return rows // STOCK_ROWS * STOCK_ROWS
    step = 1 << max(0, rows.bit_length() - 3)
    return rows if rows % step == 0 else 0


def _fits_stock(x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, dtype: torch.dtype) -> bool:
    """Operands laid out as in the comparison."""
    plain = all(
        each.is_contiguous() and each.data_ptr() % ALIGNMENT == 0 for each in (x_MK, weight_NK)
    )
    return plain and x_MK.dtype == torch.bfloat16 and (dtype == x_MK.dtype or bias_N is None)


_compared: dict[tuple[Shape, torch.device], bool] = {}


def stock_is_equal(shape: Shape, device: torch.device) -> bool:
    """Whether cuBLAS gives the bits of `triton_product` for this shape; compared at the first call."""
    if (key := (shape, device)) not in _compared:
        if torch.cuda.is_current_stream_capturing():
            return False  # nothing can be compared here; Triton's product has the same bits
        try:
            _compared[key] = _compare(shape, device)
        except torch.OutOfMemoryError:
            return False
    return _compared[key]


@torch.no_grad()
def _compare(shape: Shape, device: torch.device) -> bool:
    rows, columns, depth, dtype, has_bias = shape
    draw = torch.Generator(device).manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.empty(size, dtype=torch.bfloat16, device=device).normal_(generator=draw)

    weight_NK, bias_N = normal(columns, depth), normal(columns) if has_bias else None
    for _ in range(-(-COMPARED // (rows * columns))):
        x_MK = normal(rows, depth)
        ours_MN = triton_product(
            x_MK, weight_NK, bias_N, torch.empty(rows, columns, dtype=dtype, device=device)
        )
        if not torch.equal(stock_product(x_MK, weight_NK, bias_N, dtype), ours_MN):
            return False
    return True


def stock_product(
    x_MK: Tensor,
    weight_NK: Tensor,
    bias_N: Tensor | None,
    dtype: torch.dtype,
    out_MN: Tensor | None = None,
) -> Tensor:
    """The product by cuBLAS."""
    if dtype != x_MK.dtype:
        return torch.mm(x_MK, weight_NK.mT, out_dtype=dtype, out=out_MN)
    if bias_N is None:
        return torch.mm(x_MK, weight_NK.mT, out=out_MN)
    return torch.addmm(bias_N, x_MK, weight_NK.mT, out=out_MN)


def triton_product(
    x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, out_MN: Tensor, tile: Tile | None = None
) -> Tensor:
    """The product by Triton, with a given tile or the best one; it is written to `out_MN`."""
    (rows, columns), wide = out_MN.shape, x_MK.dtype == torch.float32
    tile = tile or (WIDE_TILE if wide else choose_tile(rows, columns))
    step = DEPTH // 2 if wide else DEPTH  # 128 bytes
    x_MK, weight_NK = _addressable(x_MK), _addressable(weight_NK)
    operands = (
        TensorDescriptor.from_tensor(x_MK, [tile.rows, step]),
        TensorDescriptor.from_tensor(weight_NK, [tile.columns, step]),
        x_MK if bias_N is None else bias_N,  # the bias is read only with HAS_BIAS
    )
    _linear[(triton.cdiv(rows, tile.rows) * triton.cdiv(columns, tile.columns),)](
        *operands,
        out_MN,
        rows,
        columns,
        x_MK.shape[1],
        HAS_BIAS=bias_N is not None,
        LARGE=out_MN.numel() >= 2**31,
        WIDE=wide,
        GROUP=GROUP,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=step,
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=False,
    )
    return out_MN


def _addressable(x: Tensor) -> Tensor:
    """Rows that a tensor descriptor can address; zeros behind K do not change a sum."""
    per_row = ALIGNMENT // x.element_size()
    if x.shape[1] % per_row:
        return F.pad(x, (0, per_row - x.shape[1] % per_row))
    fits = x.stride(1) == 1 and x.stride(0) % per_row == 0 and x.stride(0) >= x.shape[1]
    return (
        x
        if fits and x.data_ptr() % ALIGNMENT == 0
        else x.clone(memory_format=torch.contiguous_format)
    )


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


@triton.jit(do_not_specialize=["rows"])
def _linear(
    x,
    weight,
    bias,
    out,
    rows,
    columns,
    depth,
    HAS_BIAS: tl.constexpr,
    LARGE: tl.constexpr,
    WIDE: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    row_blocks, column_blocks = tl.cdiv(rows, ROWS), tl.cdiv(columns, COLUMNS)
    group = tl.program_id(0) // (GROUP * column_blocks)
    in_group = tl.program_id(0) % (GROUP * column_blocks)
    height = tl.minimum(row_blocks - group * GROUP, GROUP)
    row = (group * GROUP + in_group % height) * ROWS
    column = in_group // height * COLUMNS
    sum_MN = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for k in range(0, depth, DEPTH):  # behind the end of K a descriptor gives zeros
        a_MK, b_NK = x.load([row, k]), weight.load([column, k])
        sum_MN = tl.dot(
            a_MK, b_NK.T, sum_MN, input_precision="ieee" if WIDE else "tf32"
        )  # of float32 inputs
    rows_M, columns_N = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    if HAS_BIAS:
        sum_MN += tl.load(bias + columns_N, mask=columns_N < columns, other=0.0).to(tl.float32)[
            None, :
        ]
    places_M = rows_M.to(tl.int64) * columns if LARGE else rows_M * columns
    inside_MN = (rows_M < rows)[:, None] & (columns_N < columns)[None, :]
    tl.store(
        out + places_M[:, None] + columns_N[None, :],
        sum_MN.to(out.dtype.element_ty),
        mask=inside_MN,
    )
