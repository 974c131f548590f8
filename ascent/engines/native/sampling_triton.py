"""Sampling on CUDA, in Triton: noise, argmax, log-sum-exp and log-probability in one pass over a row's logits.

The integers of the noise equal those of `counter_rng.exponentials`; the floats agree to rounding. From equal logits,
log-probs equal those of `exact_head_cuda` bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ascent.engines.counter_rng import OFFSET0, OFFSET1
from ascent.engines.native.batch_state import SamplingState
from ascent.models.sampling_noise_cuda import exponential, stream_keys
from ascent.models.softmax_sums_cuda import LANES, WARPS, add_lanes, add_mass

BLOCK = 2048  # numbers of a program that only fills


def sample_full_vocab_cuda(logits_BV: Tensor, params: SamplingState) -> tuple[Tensor, Tensor]:
    """Tokens and log-probabilities of rows without truncation."""
    rows, size = logits_BV.shape
    tokens_B = torch.empty(rows, dtype=torch.int32, device=logits_BV.device)
    top_B, logit_B = torch.empty(2, rows, dtype=torch.float32, device=logits_BV.device)
    mass_BL = torch.empty(rows, LANES, dtype=torch.float32, device=logits_BV.device)
    keys = (params.key0_B, params.key1_B, params.position_B)
    _sample[(rows,)](
        logits_BV,
        params.temperature_B,
        params.greedy_B,
        *keys,
        tokens_B,
        top_B,
        mass_BL,
        logit_B,
        size,
        logits_BV.stride(0),
        OFFSET0=OFFSET0,
        OFFSET1=OFFSET1,
        LANES=LANES,
        num_warps=WARPS,
        enable_fp_fusion=False,
    )
    return tokens_B, add_lanes(top_B, mass_BL, logit_B)[1]


def exponentials_cuda(params: SamplingState, size: int) -> Tensor:
    """The numbers of `counter_rng.exponentials`, on the device."""
    rows = params.position_B.shape[0]
    out_BV = torch.empty(rows, size, dtype=torch.float32, device=params.position_B.device)
    _fill_exponentials[(rows, triton.cdiv(size, BLOCK))](
        params.key0_B,
        params.key1_B,
        params.position_B,
        out_BV,
        size,
        OFFSET0=OFFSET0,
        OFFSET1=OFFSET1,
        BLOCK=BLOCK,
        num_warps=8,
    )
    return out_BV


@triton.jit
def _sample(
    logits,
    temperatures,
    greedy,
    key0,
    key1,
    positions,
    tokens,
    tops,
    masses,
    token_logits,
    size,
    stride,
    OFFSET0: tl.constexpr,
    OFFSET1: tl.constexpr,
    LANES: tl.constexpr,
):
    row = tl.program_id(0)
    first, second = stream_keys(key0, key1, positions, row, OFFSET0, OFFSET1)
    temperature = tl.load(temperatures + row)
    is_greedy = tl.load(greedy + row) != 0
    row_logits = logits + row.to(tl.int64) * stride
    lanes_L = tl.arange(0, LANES)
    # Every lane keeps its own sums and best token; they are reduced once, at the end.
    top_L = tl.full([LANES], -float("inf"), tl.float32)
    mass_L = tl.zeros([LANES], tl.float32)
    best_L, logit_L = top_L, mass_L
    token_L = lanes_L
    for start in range(0, size, LANES):
        tokens_L = start + lanes_L
        valid_L = tokens_L < size
        z_L = tl.load(row_logits + tokens_L, mask=valid_L, other=-float("inf")) / temperature
        _, top_L, mass_L = add_mass(z_L, valid_L, top_L, mass_L)
        score_L = tl.where(is_greedy, z_L, z_L - tl.log(exponential(tokens_L, first, second)))
        better_L = (score_L > best_L) & valid_L
        best_L = tl.where(better_L, score_L, best_L)
        logit_L = tl.where(better_L, z_L, logit_L)
        token_L = tl.where(better_L, tokens_L, token_L)
    top = tl.max(top_L, 0)
    best = tl.max(best_L, 0)
    token = tl.min(tl.where(best_L == best, token_L, size), 0)  # the first of equals, like argmax
    logit = tl.max(tl.where(token_L == token, logit_L, -float("inf")), 0)
    tl.store(tokens + row, token)
    tl.store(tops + row, top)
    tl.store(token_logits + row, logit)
    tl.store(masses + row.to(tl.int64) * LANES + lanes_L, mass_L * tl.exp(top_L - top))


@triton.jit
def _fill_exponentials(
    key0,
    key1,
    positions,
    out,
    size,
    OFFSET0: tl.constexpr,
    OFFSET1: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    first, second = stream_keys(key0, key1, positions, row, OFFSET0, OFFSET1)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(
        out + row.to(tl.int64) * size + tokens,
        exponential(tokens, first, second),
        mask=tokens < size,
    )
