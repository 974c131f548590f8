"""Sums of rows by segment in one Triton kernel, on CUDA: the backward pass of a gather with repeats.

Axes: T rows, U segments, D size of a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512


def segment_sum(rows_T: Tensor, sorted_T: Tensor, counts_U: Tensor, ends_U: Tensor) -> Tensor:
    """out[u] = the sum of the next `counts_U[u]` rows in the order `sorted_T`, in float32, in that order.

    `ends_U` is the running sum of `counts_U`.
    """
    rows_TD = rows_T.contiguous().flatten(1)
    size, segments = rows_TD.shape[1], counts_U.numel()
    out_UD = torch.empty(segments, size, dtype=rows_T.dtype, device=rows_T.device)
    _sum[(segments, triton.cdiv(size, BLOCK))](
        rows_TD, sorted_T, ends_U, counts_U, out_UD, size, BLOCK=BLOCK, num_warps=2
    )
    return out_UD.unflatten(1, rows_T.shape[1:])


@triton.jit
def _sum(rows, order, ends, counts, out, size, BLOCK: tl.constexpr):
    segment = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = columns < size
    end = tl.load(ends + segment)
    total = tl.zeros([BLOCK], tl.float32)
    for place in range(end - tl.load(counts + segment), end):
        row = tl.load(order + place)
        total += tl.load(rows + row * size + columns, mask=there, other=0.0).to(tl.float32)
    tl.store(out + segment * size + columns, total.to(out.dtype.element_ty), mask=there)
