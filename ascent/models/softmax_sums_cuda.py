"""The log-sum-exp of a row on CUDA, in Triton, in an order that is the same in every kernel.

Lanes walk over a row side by side; each keeps its largest logit and its mass relative to it. One kernel, `_add_lanes`,
adds the lanes: inside the kernels that walk, the compiler could order such a sum differently. They are compiled without
fused multiply-adds (enable_fp_fusion=False) for the same reason.

Axes: N rows, L lanes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES, WARPS = 2048, 16


@triton.jit
def add_mass(z_L, valid_L, top_L, mass_L):
    """One more logit of each lane: its factor exp(-|z - top|), the new largest logit and the new mass."""
    step_L = tl.exp(-tl.abs(z_L - top_L))
    grown_L = tl.where(z_L > top_L, mass_L * step_L + 1, mass_L + step_L)
    return step_L, tl.maximum(top_L, z_L), tl.where(valid_L, grown_L, mass_L)


def add_lanes(top_N: Tensor, mass_NL: Tensor, logit_N: Tensor) -> tuple[Tensor, Tensor]:
    """Log-sum-exp and log-prob of each row, from its largest logit, the masses of its lanes, and the token's logit."""
    lse_N, logprobs_N = torch.empty_like(top_N), torch.empty_like(top_N)
    _add_lanes[(top_N.shape[0],)](
        top_N,
        mass_NL,
        logit_N,
        lse_N,
        logprobs_N,
        LANES=mass_NL.shape[1],
        num_warps=4,
        enable_fp_fusion=False,
    )
    return lse_N, logprobs_N


@triton.jit
def _add_lanes(top, mass, logit, lse, logprobs, LANES: tl.constexpr):
    row = tl.program_id(0)
    sum = tl.sum(tl.load(mass + row.to(tl.int64) * LANES + tl.arange(0, LANES)), 0)
    found = tl.load(top + row) + tl.log(sum)
    tl.store(lse + row, found)
    tl.store(logprobs + row, tl.load(logit + row) - found)
