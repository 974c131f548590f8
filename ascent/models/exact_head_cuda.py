"""The output head on CUDA with one order of summation for training and sampling.

Training takes the logits of some rows at a time, by the product that sampling uses, and reduces them in the order of
the kernel that samples (`softmax_sums_cuda`). So both give a token the same log-prob, bit for bit.

Axes: N rows, D hidden size, V vocabulary, L lanes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ascent.models.head import Head, TileConfig, head_logits
from ascent.models.softmax_sums_cuda import LANES, WARPS, add_lanes, add_mass

ROWS = 1024  # whose logits exist at once; 600 MB with a vocabulary of 152,000


def reduce_logits(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    tokens_N: Tensor,
    config: TileConfig,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For every row: log-sum-exp, the mean logit under softmax, the logit of its token, the log collision."""
    head = Head(weight_VD, bias_V, config.scale, config.softcap, config.kernels)
    temperature_N = torch.full(
        tokens_N.shape, config.temperature, dtype=torch.float32, device=hidden_ND.device
    )
    found_4N = _reduce_rows(
        hidden_ND, head, tokens_N, temperature_N, config.entropy, config.collision
    )
    return found_4N[0], found_4N[1], found_4N[2], found_4N[3]


def token_logprobs(
    hidden_ND: Tensor, head: Head, tokens_N: Tensor, temperature_N: Tensor
) -> Tensor:
    """The log-prob of each row's token at the row's temperature."""
    lse_N, _, logit_N, _ = _reduce_rows(hidden_ND, head, tokens_N, temperature_N, False, False)
    return logit_N - lse_N


def _reduce_rows(
    hidden_ND: Tensor,
    head: Head,
    tokens_N: Tensor,
    temperature_N: Tensor,
    entropy: bool,
    collision: bool,
) -> Tensor:
    rows, device = hidden_ND.shape[0], hidden_ND.device
    found_4N = torch.zeros(4, rows, dtype=torch.float32, device=device)
    for start in range(0, rows, ROWS):
        own = slice(start, min(start + ROWS, rows))
        logits_NV = head_logits(hidden_ND[own], head)
        top_N = torch.empty(len(logits_NV), dtype=torch.float32, device=device)
        mass_NL = torch.empty(len(logits_NV), LANES, dtype=torch.float32, device=device)
        _reduce[(len(logits_NV),)](
            logits_NV,
            tokens_N[own],
            temperature_N[own],
            top_N,
            mass_NL,
            found_4N[:, own],
            *logits_NV.shape[1:],
            logits_NV.stride(0),
            rows,
            ENTROPY=entropy,
            COLLISION=collision,
            LANES=LANES,
            num_warps=WARPS,
            enable_fp_fusion=False,
        )
        found_4N[0, own] = add_lanes(top_N, mass_NL, top_N)[0]
        del logits_NV  # or two of them would be alive
    return found_4N


@triton.jit(do_not_specialize=["rows"])
def _reduce(
    logits,
    tokens,
    temperatures,
    tops,
    masses,
    found,
    size,
    stride,
    rows,
    ENTROPY: tl.constexpr,
    COLLISION: tl.constexpr,
    LANES: tl.constexpr,
):
    """What is needed for the log-sum-exp, `found[0]`, and the other three of `found`."""
    row = tl.program_id(0)
    temperature = tl.load(temperatures + row)
    row_logits = logits + row.to(tl.int64) * stride
    lanes_L = tl.arange(0, LANES)
    top_L = tl.full([LANES], -float("inf"), tl.float32)
    mass_L = tl.zeros([LANES], tl.float32)
    weighted_L, squares_L = mass_L, mass_L
    for start in range(0, size, LANES):
        valid_L = start + lanes_L < size
        z_L = tl.load(row_logits + start + lanes_L, mask=valid_L, other=-float("inf")) / temperature
        grows_L = z_L > top_L
        step_L, top_L, mass_L = add_mass(z_L, valid_L, top_L, mass_L)
        if ENTROPY:
            known_L = tl.where(valid_L, z_L, 0.0)
            grown_L = tl.where(
                grows_L, weighted_L * step_L + known_L, weighted_L + step_L * known_L
            )
            weighted_L = tl.where(valid_L, grown_L, weighted_L)
        if COLLISION:
            square_L = step_L * step_L
            grown_L = tl.where(grows_L, squares_L * square_L + 1, squares_L + square_L)
            squares_L = tl.where(valid_L, grown_L, squares_L)
    top = tl.max(top_L, 0)
    shrink_L = tl.exp(top_L - top)
    tl.store(tops + row, top)
    tl.store(masses + row.to(tl.int64) * LANES + lanes_L, mass_L * shrink_L)
    mass, wide = tl.sum(mass_L * shrink_L, 0), tl.cast(rows, tl.int64)
    if ENTROPY:
        tl.store(found + wide + row, tl.sum(weighted_L * shrink_L, 0) / mass)
    tl.store(found + 2 * wide + row, tl.load(row_logits + tl.load(tokens + row)) / temperature)
    if COLLISION:
        squares = tl.sum(squares_L * shrink_L * shrink_L, 0)
        tl.store(found + 3 * wide + row, tl.log(squares) - 2 * tl.log(mass))
