"""Adding a low-precision gradient to a float32 sum in one Triton kernel, on CUDA: up to twice as fast as `add_`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


def accumulate(total: Tensor, gradient: Tensor) -> None:
    """total += gradient, with the bits of `total.add_(gradient)`."""
    if total.shape != gradient.shape or not (total.is_contiguous() and gradient.is_contiguous()):
        total.add_(gradient)
        return
    size = total.numel()
    _accumulate[(triton.cdiv(size, BLOCK),)](total, gradient, size, BLOCK=BLOCK, num_warps=4)


@triton.jit
def _accumulate(total, gradient, size, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = places < size
    widened = tl.load(gradient + places, mask=there).to(total.dtype.element_ty)
    tl.store(total + places, tl.load(total + places, mask=there) + widened, mask=there)
