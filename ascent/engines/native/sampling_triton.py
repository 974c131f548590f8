"""Drawing on CUDA, in Triton: noise, race, log-sum-exp and log-probability in one pass over a row's logits.

The integers of the noise are those of `noise.exponentials`; the floats agree to rounding.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ascent.engines.counter_rng import FIRST, SECOND
from ascent.engines.native.batch_state import SamplingState

BLOCK = 2048  # tokens of a row looked at together


def draw_whole(logits_BV: Tensor, ask: SamplingState) -> tuple[Tensor, Tensor]:
    """Tokens and log-probabilities of rows that may draw any token."""
    rows, size = logits_BV.shape
    tokens_B = torch.empty(rows, dtype=torch.int32, device=logits_BV.device)
    logprobs_B = torch.empty(rows, dtype=torch.float32, device=logits_BV.device)
    words = (ask.word0_B, ask.word1_B, ask.position_B)
    _draw[(rows,)](
        logits_BV, ask.temperature_B, ask.greedy_B, *words, tokens_B, logprobs_B, size, logits_BV.stride(0),
        FIRST=FIRST, SECOND=SECOND, BLOCK=BLOCK, num_warps=16,
    )  # fmt: skip
    return tokens_B, logprobs_B


def exponentials_on_cuda(ask: SamplingState, size: int) -> Tensor:
    """The numbers of `noise.exponentials`, where they are needed."""
    rows = ask.position_B.shape[0]
    out_BV = torch.empty(rows, size, dtype=torch.float32, device=ask.position_B.device)
    _fill[(rows, triton.cdiv(size, BLOCK))](
        ask.word0_B, ask.word1_B, ask.position_B, out_BV, size, FIRST=FIRST, SECOND=SECOND, BLOCK=BLOCK, num_warps=8
    )
    return out_BV


@triton.jit
def _mixed(x):
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _keys(word0, word1, positions, row, FIRST: tl.constexpr, SECOND: tl.constexpr):
    position = tl.load(positions + row).to(tl.uint32, bitcast=True)
    first = _mixed(tl.load(word0 + row).to(tl.uint32, bitcast=True) ^ _mixed(position + FIRST))
    second = _mixed(tl.load(word1 + row).to(tl.uint32, bitcast=True) ^ _mixed(position + SECOND))
    return first, second


@triton.jit
def _exponential(tokens, first, second):
    hashed = _mixed(_mixed(tokens.to(tl.uint32) ^ first) + second)
    u = (hashed.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    u = tl.minimum(u, 0.99999994)
    # -log(1 - u) keeps the digits of a small u by its series; elsewhere the logarithm does.
    small = u + u * u * 0.5 + u * u * u * 0.33333334
    return tl.where(u < 1e-3, small, -tl.log(1 - u))


@triton.jit
def _draw(
    logits, temperatures, greedy, word0, word1, positions, tokens, logprobs, size, stride,
    FIRST: tl.constexpr, SECOND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    first, second = _keys(word0, word1, positions, row, FIRST, SECOND)
    temperature = tl.load(temperatures + row)
    plain = tl.load(greedy + row) != 0
    line = logits + row.to(tl.int64) * stride
    lanes = tl.arange(0, BLOCK)
    # Every lane keeps its own sums and its own winner; they meet once, after the last token.
    top_L = tl.full([BLOCK], -float("inf"), tl.float32)
    mass_L = tl.zeros([BLOCK], tl.float32)
    best_L = tl.full([BLOCK], -float("inf"), tl.float32)
    picked_L = tl.zeros([BLOCK], tl.float32)
    place_L = lanes
    for start in range(0, size, BLOCK):
        places_L = start + lanes
        inside_L = places_L < size
        z_L = tl.load(line + places_L, mask=inside_L, other=-float("inf")) / temperature
        step_L = tl.exp(-tl.abs(z_L - top_L))
        grown_L = tl.where(z_L > top_L, mass_L * step_L + 1, mass_L + step_L)
        mass_L = tl.where(inside_L, grown_L, mass_L)
        top_L = tl.maximum(top_L, z_L)
        race_L = tl.where(plain, z_L, z_L - tl.log(_exponential(places_L, first, second)))
        ahead_L = (race_L > best_L) & inside_L
        best_L = tl.where(ahead_L, race_L, best_L)
        picked_L = tl.where(ahead_L, z_L, picked_L)
        place_L = tl.where(ahead_L, places_L, place_L)
    top = tl.max(top_L, 0)
    mass = tl.sum(mass_L * tl.exp(top_L - top), 0)
    best = tl.max(best_L, 0)
    token = tl.min(tl.where(best_L == best, place_L, size), 0)  # of equals the first, as argmax has it
    picked = tl.max(tl.where(place_L == token, picked_L, -float("inf")), 0)
    tl.store(tokens + row, token)
    tl.store(logprobs + row, picked - top - tl.log(mass))


@triton.jit
def _fill(word0, word1, positions, out, size, FIRST: tl.constexpr, SECOND: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    first, second = _keys(word0, word1, positions, row, FIRST, SECOND)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + row.to(tl.int64) * size + places, _exponential(places, first, second), mask=places < size)
