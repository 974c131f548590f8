"""The output head in Triton, for half precision on CUDA: logits exist only as tiles inside a kernel.

`reduce_logits` gives what log-probs, entropy and collision need of every row; `logits_gradient` gives a tile of the
gradient of the logits, in the precision of the weights, for the two products that follow. Products are exact and summed
in float32. A row's result does not depend on the other rows.

Axes: N rows, D hidden size, V vocabulary, C columns of a tile, S splits of the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ascent.models.head import TileConfig

ROWS, COLUMNS, DEPTH = (
    128,
    256,
    64,
)  # the tile of one program, and the depth of one step of its product
SPLITS = 16  # of the vocabulary in `reduce_logits`; fixed, so that a row's bits do not depend on the batch
GROUP = 16  # row blocks that run side by side and share their columns in the L2 cache
WARPS, STAGES = 8, 3


def supports(hidden_ND: Tensor, weight_VD: Tensor) -> bool:
    """Half precision on Hopper or later, in rows that a tensor descriptor can address (multiples of 16 bytes)."""
    return (
        hidden_ND.shape[0] > 0
        and hidden_ND.is_cuda
        and torch.cuda.get_device_capability(hidden_ND.device) >= (9, 0)
        and hidden_ND.dtype == weight_VD.dtype
        and hidden_ND.dtype in (torch.bfloat16, torch.float16)
        and hidden_ND.shape[1] % 8 == 0
        and weight_VD.is_contiguous()
    )


def reduce_logits(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    tokens_N: Tensor,
    config: TileConfig,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For every row: log-sum-exp, the mean logit under softmax, the logit of its token, the log collision."""
    rows, vocab = hidden_ND.shape[0], weight_VD.shape[0]
    parts_4SN = hidden_ND.new_zeros(4, SPLITS, rows, dtype=torch.float32)
    logits_N = hidden_ND.new_zeros(rows, dtype=torch.float32)
    per_split = triton.cdiv(triton.cdiv(vocab, COLUMNS), SPLITS) * COLUMNS
    _reduce[(triton.cdiv(rows, ROWS), SPLITS)](
        *_operands(hidden_ND, weight_VD, bias_V),
        tokens_N,
        parts_4SN,
        logits_N,
        rows,
        vocab,
        hidden_ND.shape[1],
        per_split,
        config.scale,
        config.softcap or 0.0,
        config.temperature,
        HAS_BIAS=bias_V is not None,
        SOFTCAP=config.softcap is not None,
        ENTROPY=config.entropy,
        COLLISION=config.collision,
        SPLITS=SPLITS,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        DEPTH=DEPTH,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    top_SN, mass_SN, weighted_SN, squares_SN = parts_4SN.unbind()
    top_N = top_SN.amax(0)
    shrink_SN = (top_SN - top_N).exp()
    mass_N = (mass_SN * shrink_SN).sum(0)
    mean_N = (weighted_SN * shrink_SN).sum(0) / mass_N
    collision_N = (
        (squares_SN * shrink_SN.square()).sum(0).log() - 2 * mass_N.log()
        if config.collision
        else 0 * mean_N
    )
    return top_N + mass_N.log(), mean_N, logits_N, collision_N


def logits_gradient(
    hidden_ND: Tensor,
    weight_CD: Tensor,
    bias_C: Tensor | None,
    local_N: Tensor,
    row_values: tuple[Tensor, Tensor, Tensor, Tensor],
    config: TileConfig,
) -> Tensor:
    """Gradient with respect to one tile of h @ W.T + b, rounded to the precision of the weights.

    `local_N` are the tokens as columns of the tile; `row_values` are d logprob, d entropy, log-sum-exp and mean.
    """
    rows, columns = hidden_ND.shape[0], weight_CD.shape[0]
    out_NC = torch.empty(rows, columns, dtype=weight_CD.dtype, device=weight_CD.device)
    blocks = triton.cdiv(rows, ROWS) * triton.cdiv(columns, COLUMNS)
    _gradient[(blocks,)](
        *_operands(hidden_ND, weight_CD, bias_C),
        local_N,
        *(each.contiguous() for each in row_values),
        out_NC,
        rows,
        columns,
        hidden_ND.shape[1],
        config.scale,
        config.softcap or 0.0,
        config.temperature,
        HAS_BIAS=bias_C is not None,
        SOFTCAP=config.softcap is not None,
        ENTROPY=config.entropy,
        GROUP=GROUP,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        DEPTH=DEPTH,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    return out_NC


def _operands(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> tuple[Any, ...]:
    hidden = TensorDescriptor.from_tensor(hidden_ND.contiguous(), [ROWS, DEPTH])
    weight = TensorDescriptor.from_tensor(weight_VD, [COLUMNS, DEPTH])
    return (
        hidden,
        weight,
        weight_VD if bias_V is None else bias_V,
    )  # the bias is read only with HAS_BIAS


@triton.jit
def _tile(
    hidden,
    weight,
    bias,
    row,
    column,
    columns,
    depth,
    scale,
    softcap,
    temperature,
    HAS_BIAS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """One tile of tempered logits."""
    x_NC = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for k in range(0, depth, DEPTH):
        x_NC = tl.dot(hidden.load([row, k]), weight.load([column, k]).T, x_NC)
    if HAS_BIAS:
        columns_C = column + tl.arange(0, COLUMNS)
        x_NC += tl.load(bias + columns_C, mask=columns_C < columns, other=0.0).to(tl.float32)[
            None, :
        ]
    x_NC *= scale
    if SOFTCAP:
        x_NC = softcap * (2 * tl.sigmoid(2 * x_NC / softcap) - 1)
    return x_NC / temperature


@triton.jit(do_not_specialize=["rows"])
def _reduce(
    hidden,
    weight,
    bias,
    tokens,
    parts,
    logits,
    rows,
    vocab,
    depth,
    per_split,
    scale,
    softcap,
    temperature,
    HAS_BIAS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ENTROPY: tl.constexpr,
    COLLISION: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    row, split = tl.program_id(0) * ROWS, tl.program_id(1)
    rows_N = row + tl.arange(0, ROWS)
    there_N = rows_N < rows
    token_N = tl.load(tokens + rows_N, mask=there_N, other=-1)
    top_N = tl.full((ROWS,), -float("inf"), dtype=tl.float32)
    mass_N = tl.zeros((ROWS,), dtype=tl.float32)
    weighted_N = tl.zeros((ROWS,), dtype=tl.float32)
    squares_N = tl.zeros((ROWS,), dtype=tl.float32)
    logit_N = tl.zeros((ROWS,), dtype=tl.float32)
    first, last = split * per_split, tl.minimum((split + 1) * per_split, vocab)
    for column in range(first, last, COLUMNS):
        x_NC = _tile(
            hidden,
            weight,
            bias,
            row,
            column,
            vocab,
            depth,
            scale,
            softcap,
            temperature,
            HAS_BIAS,
            SOFTCAP,
            ROWS,
            COLUMNS,
            DEPTH,
        )
        columns_C = column + tl.arange(0, COLUMNS)
        inside_C = (columns_C < last)[None, :]
        logit_N += tl.sum(tl.where(columns_C[None, :] == token_N[:, None], x_NC, 0.0), 1)
        new_N = tl.maximum(top_N, tl.max(tl.where(inside_C, x_NC, -float("inf")), 1))
        shrink_N = tl.exp(top_N - new_N)
        exp_NC = tl.where(inside_C, tl.exp(x_NC - new_N[:, None]), 0.0)
        mass_N = mass_N * shrink_N + tl.sum(exp_NC, 1)
        if COLLISION:
            squares_N = squares_N * shrink_N * shrink_N + tl.sum(exp_NC * exp_NC, 1)
        if ENTROPY:
            weighted_N = weighted_N * shrink_N + tl.sum(exp_NC * x_NC, 1)
        top_N = new_N
    own = split.to(tl.int64) * rows + rows_N
    stride = tl.cast(rows, tl.int64) * SPLITS
    tl.store(parts + own, top_N, mask=there_N)
    tl.store(parts + stride + own, mass_N, mask=there_N)
    tl.store(parts + 2 * stride + own, weighted_N, mask=there_N)
    tl.store(parts + 3 * stride + own, squares_N, mask=there_N)
    tl.store(logits + rows_N, logit_N, mask=there_N & (token_N >= first) & (token_N < last))


@triton.jit(do_not_specialize=["rows"])
def _gradient(
    hidden,
    weight,
    bias,
    tokens,
    d_logprobs,
    d_entropy,
    lse,
    mean,
    out,
    rows,
    columns,
    depth,
    scale,
    softcap,
    temperature,
    HAS_BIAS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ENTROPY: tl.constexpr,
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
    x_NC = _tile(
        hidden,
        weight,
        bias,
        row,
        column,
        columns,
        depth,
        scale,
        softcap,
        temperature,
        HAS_BIAS,
        SOFTCAP,
        ROWS,
        COLUMNS,
        DEPTH,
    )
    rows_N, columns_C = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    there_N = rows_N < rows
    d_logprob_N = tl.load(d_logprobs + rows_N, mask=there_N, other=0.0)
    probs_NC = tl.exp(x_NC - tl.load(lse + rows_N, mask=there_N, other=0.0)[:, None])
    if ENTROPY:
        d_entropy_N = tl.load(d_entropy + rows_N, mask=there_N, other=0.0)
        mean_N = tl.load(mean + rows_N, mask=there_N, other=0.0)
        d_NC = probs_NC * ((mean_N[:, None] - x_NC) * d_entropy_N[:, None] - d_logprob_N[:, None])
    else:
        d_NC = -probs_NC * d_logprob_N[:, None]
    token_N = tl.load(tokens + rows_N, mask=there_N, other=-1)
    d_NC += tl.where(columns_C[None, :] == token_N[:, None], d_logprob_N[:, None], 0.0)
    if SOFTCAP:
        capped_NC = x_NC * temperature / softcap
        d_NC *= 1 - capped_NC * capped_NC
    d_NC *= scale / temperature
    places_NC = rows_N.to(tl.int64)[:, None] * columns + columns_C[None, :]
    tl.store(
        out + places_NC,
        d_NC.to(out.dtype.element_ty),
        mask=there_N[:, None] & (columns_C < columns)[None, :],
    )
