"""The output head on CUDA with one order of summation for training and sampling, in Triton.

One kernel computes tiles of logits and reduces them: log-sum-exp, the logit of a given token, entropy and collision, or
the sampled token (Gumbel-max) with its logit, so logits are never written. Tile and splits of the vocabulary are the
same for every number of rows, and a second kernel merges the splits in order. Sampling and training therefore give a
token the same log-prob, bit for bit.

Axes: N rows, D hidden size, V vocabulary, C columns of a tile, S splits of the vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ascent.models.head import Head, TileConfig
from ascent.models.sampling_noise_cuda import exponential, stream_keys

# Fixed: they decide the order of summation. With 256 columns the noise would not fit into the registers.
ROWS, COLUMNS, DEPTH = 128, 128, 64
SPLITS = 128
WARPS, STAGES = 8, 4
MERGED_ROWS = 32


class Noise(NamedTuple):
    """What the sampled tokens depend on, per row, and the two constants of the generator."""

    greedy_N: Tensor
    key0_N: Tensor
    key1_N: Tensor
    position_N: Tensor
    offsets: tuple[int, int]


class Reduced(NamedTuple):
    """Per row: log-sum-exp, the mean logit under softmax, the logit of the token, the log collision, the token."""

    lse_N: Tensor
    mean_N: Tensor
    logit_N: Tensor
    collision_N: Tensor
    tokens_N: Tensor


def reduce_logits(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, tokens_N: Tensor, config: TileConfig
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For every row: log-sum-exp, the mean logit, the logit of its token, the log collision."""
    temperature_N = torch.full(tokens_N.shape, config.temperature, dtype=torch.float32, device=hidden_ND.device)
    head = Head(weight_VD, bias_V, config.scale)
    return _run(
        hidden_ND, head, temperature_N, tokens_N, None, entropy=config.entropy, collision=config.collision
    )[:4]  # fmt: skip


def token_logprobs(hidden_ND: Tensor, head: Head, tokens_N: Tensor, temperature_N: Tensor) -> Tensor:
    """The log-prob of each row's token at the row's temperature."""
    found = _run(hidden_ND, head, temperature_N, tokens_N, None)
    return found.logit_N - found.lse_N


def sample(hidden_ND: Tensor, head: Head, temperature_N: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """A token of each row, int32, and its log-prob."""
    found = _run(hidden_ND, head, temperature_N, noise.position_N, noise)
    return found.tokens_N, found.logit_N - found.lse_N


def _run(
    hidden_ND: Tensor, head: Head, temperature_N: Tensor, tokens_N: Tensor, noise: Noise | None,
    *, entropy: bool = False, collision: bool = False,
) -> Reduced:  # fmt: skip
    (rows, depth), vocab = hidden_ND.shape, head.weight_VD.shape[0]
    device = hidden_ND.device
    found_4N = torch.zeros(4, rows, dtype=torch.float32, device=device)
    sampled_N = torch.zeros(rows, dtype=torch.int32, device=device)
    if not rows:
        return Reduced(found_4N[0], found_4N[1], found_4N[2], found_4N[3], sampled_N)
    parts_6SN = torch.empty(6, SPLITS, rows, dtype=torch.float32, device=device)
    best_SN = torch.empty(SPLITS if noise else 1, rows, dtype=torch.int32, device=device)
    keys = noise[:4] if noise else (tokens_N,) * 4
    offsets = noise.offsets if noise else (0, 0)
    per_split = triton.cdiv(triton.cdiv(vocab, COLUMNS), SPLITS) * COLUMNS
    _reduce[(triton.cdiv(rows, ROWS), SPLITS)](
        TensorDescriptor.from_tensor(hidden_ND.contiguous(), [ROWS, DEPTH]),
        TensorDescriptor.from_tensor(head.weight_VD, [COLUMNS, DEPTH]),
        head.weight_VD if head.bias_V is None else head.bias_V, tokens_N, temperature_N.contiguous(),
        *(each.contiguous() for each in keys), parts_6SN, best_SN, rows, vocab, depth, per_split, head.scale,
        HAS_BIAS=head.bias_V is not None, ENTROPY=entropy, COLLISION=collision, SAMPLES=noise is not None,
        OFFSET0=offsets[0], OFFSET1=offsets[1], SPLITS=SPLITS, ROWS=ROWS, COLUMNS=COLUMNS, DEPTH=DEPTH,
        num_warps=WARPS, num_stages=STAGES, enable_fp_fusion=False,
    )  # fmt: skip
    _merge[(triton.cdiv(rows, MERGED_ROWS),)](
        parts_6SN, best_SN, tokens_N, found_4N, sampled_N, rows, per_split,
        ENTROPY=entropy, COLLISION=collision, SAMPLES=noise is not None, SPLITS=SPLITS, ROWS=MERGED_ROWS,
        num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return Reduced(found_4N[0], found_4N[1], found_4N[2], found_4N[3], sampled_N)


@triton.jit
def _best(x_NC, columns_C, inside_NC, greedy_N, first_N, second_N, vocab):
    """The largest score of a tile, its column (the first of equals, like argmax) and its logit."""
    noise_NC = tl.log(exponential(columns_C[None, :], first_N[:, None], second_N[:, None]))
    score_NC = tl.where(inside_NC, x_NC - tl.where(greedy_N[:, None], 0.0, noise_NC), -float("inf"))
    score_N = tl.max(score_NC, 1)
    token_N = tl.min(tl.where(score_NC == score_N[:, None], columns_C[None, :], vocab), 1)
    return score_N, token_N, _logit(x_NC, columns_C, token_N)


@triton.jit
def _logit(x_NC, columns_C, token_N):
    return tl.max(tl.where(columns_C[None, :] == token_N[:, None], x_NC, -float("inf")), 1)


@triton.jit
def _reduce(
    hidden, weight, bias, tokens, temperatures, greedy, key0, key1, positions, parts, best_tokens, rows, vocab, depth,
    per_split, scale,
    HAS_BIAS: tl.constexpr, ENTROPY: tl.constexpr, COLLISION: tl.constexpr, SAMPLES: tl.constexpr,
    OFFSET0: tl.constexpr, OFFSET1: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    row, split = tl.program_id(0) * ROWS, tl.program_id(1)
    rows_N = row + tl.arange(0, ROWS)
    there_N = rows_N < rows
    safe_N = tl.minimum(rows_N, rows - 1)  # a padding row reads the last one
    top_N = tl.full((ROWS,), -float("inf"), dtype=tl.float32)
    mass_N = tl.zeros((ROWS,), dtype=tl.float32)
    weighted_N, squares_N = mass_N, mass_N
    logit_N, score_N = top_N, top_N
    if SAMPLES:
        first_N, second_N = stream_keys(key0, key1, positions, safe_N, OFFSET0, OFFSET1)
        greedy_N = tl.load(greedy + safe_N) != 0
        token_N = tl.zeros((ROWS,), dtype=tl.int32)
    else:
        token_N = tl.load(tokens + safe_N).to(tl.int32)
    first, last = split * per_split, tl.minimum((split + 1) * per_split, vocab)
    for column in range(first, last, COLUMNS):
        x_NC = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for k in range(0, depth, DEPTH):
            x_NC = tl.dot(hidden.load([row, k]), weight.load([column, k]).T, x_NC)
        columns_C = column + tl.arange(0, COLUMNS)
        if HAS_BIAS:
            x_NC += tl.load(bias + columns_C, mask=columns_C < vocab, other=0.0).to(tl.float32)[None, :]
        x_NC = x_NC * scale / tl.load(temperatures + safe_N)[:, None]
        inside_NC = (columns_C < last)[None, :]
        new_N = tl.maximum(top_N, tl.max(tl.where(inside_NC, x_NC, -float("inf")), 1))
        shrink_N = tl.exp(top_N - new_N)
        exp_NC = tl.where(inside_NC, tl.exp(x_NC - new_N[:, None]), 0.0)
        mass_N = mass_N * shrink_N + tl.sum(exp_NC, 1)
        if COLLISION:
            squares_N = squares_N * shrink_N * shrink_N + tl.sum(exp_NC * exp_NC, 1)
        if ENTROPY:
            weighted_N = weighted_N * shrink_N + tl.sum(exp_NC * x_NC, 1)
        top_N = new_N
        if SAMPLES:
            found_N, own_N, own_logit_N = _best(x_NC, columns_C, inside_NC, greedy_N, first_N, second_N, vocab)
            better_N = found_N > score_N
            score_N = tl.where(better_N, found_N, score_N)
            token_N = tl.where(better_N, own_N, token_N)
            logit_N = tl.where(better_N, own_logit_N, logit_N)
        else:
            logit_N = tl.maximum(logit_N, _logit(x_NC, columns_C, token_N))  # -inf but in the tile of the token
    own = split.to(tl.int64) * rows + rows_N
    stride = tl.cast(rows, tl.int64) * SPLITS
    tl.store(parts + own, top_N, mask=there_N)
    tl.store(parts + stride + own, mass_N, mask=there_N)
    tl.store(parts + 2 * stride + own, logit_N, mask=there_N)
    if ENTROPY:
        tl.store(parts + 3 * stride + own, weighted_N, mask=there_N)
    if COLLISION:
        tl.store(parts + 4 * stride + own, squares_N, mask=there_N)
    if SAMPLES:
        tl.store(parts + 5 * stride + own, score_N, mask=there_N)
        tl.store(best_tokens + own, token_N, mask=there_N)


@triton.jit
def _merge(
    parts, best_tokens, tokens, found, sampled, rows, per_split,
    ENTROPY: tl.constexpr, COLLISION: tl.constexpr, SAMPLES: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Add the splits in order. Splits behind the end of the vocabulary have mass 0."""
    rows_N = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there_N = rows_N < rows
    stride = tl.cast(rows, tl.int64) * SPLITS
    top_N = tl.full((ROWS,), -float("inf"), dtype=tl.float32)
    for split in range(SPLITS):
        own = split * tl.cast(rows, tl.int64) + rows_N
        top_N = tl.maximum(top_N, tl.load(parts + own, mask=there_N, other=0.0))
    mass_N = tl.zeros((ROWS,), dtype=tl.float32)
    weighted_N, squares_N = mass_N, mass_N
    logit_N = tl.zeros((ROWS,), dtype=tl.float32)
    score_N = tl.full((ROWS,), -float("inf"), dtype=tl.float32)
    token_N = tl.zeros((ROWS,), dtype=tl.int32)
    if not SAMPLES:
        token_N = tl.load(tokens + rows_N, mask=there_N, other=0).to(tl.int32)
    for split in range(SPLITS):
        own = split * tl.cast(rows, tl.int64) + rows_N
        shrink_N = tl.exp(tl.load(parts + own, mask=there_N, other=0.0) - top_N)
        mass_N += tl.load(parts + stride + own, mask=there_N, other=1.0) * shrink_N
        part_N = tl.load(parts + 2 * stride + own, mask=there_N, other=0.0)
        if ENTROPY:
            weighted_N += tl.load(parts + 3 * stride + own, mask=there_N, other=0.0) * shrink_N
        if COLLISION:
            squares_N += tl.load(parts + 4 * stride + own, mask=there_N, other=1.0) * shrink_N * shrink_N
        if SAMPLES:
            part_score_N = tl.load(parts + 5 * stride + own, mask=there_N, other=0.0)
            better_N = part_score_N > score_N
            score_N = tl.where(better_N, part_score_N, score_N)
            token_N = tl.where(better_N, tl.load(best_tokens + own, mask=there_N, other=0), token_N)
            logit_N = tl.where(better_N, part_N, logit_N)
        else:
            logit_N = tl.where(token_N // per_split == split, part_N, logit_N)
    wide = tl.cast(rows, tl.int64)
    tl.store(found + rows_N, top_N + tl.log(mass_N), mask=there_N)
    if ENTROPY:
        tl.store(found + wide + rows_N, weighted_N / mass_N, mask=there_N)
    tl.store(found + 2 * wide + rows_N, logit_N, mask=there_N)
    if COLLISION:
        tl.store(found + 3 * wide + rows_N, tl.log(squares_N) - 2 * tl.log(mass_N), mask=there_N)
    if SAMPLES:
        tl.store(sampled + rows_N, token_N, mask=there_N)
