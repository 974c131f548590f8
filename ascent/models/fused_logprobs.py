"""Log-probabilities, exact entropy and collision from hidden states, a tile of logits at a time.

The full matrix of logits (tokens x vocabulary) never exists. Tiles are computed, reduced into a running log-sum-exp and
dropped; the backward pass computes them again. Sums are in float32 at least. Beyond its inputs, its outputs and their
gradients (and one float32 copy of the hidden states' gradient), this takes at most `budget_bytes`.

Axes: N tokens to score, D hidden size, V vocabulary, R rows and C columns of a tile.
With l the tempered logits and p = softmax(l): logprob = l[token] - lse, entropy = lse - mean, mean = sum p l,
collision = log sum p^2 (the log-probability that two samples agree), which has no gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ascent.maths.logprobs import widened
from ascent.models.head import Head, TileConfig, tile_logits
from ascent.models.layer_patching import wide_product

BUDGET_BYTES = 128 * 2**20
CUDA_BUDGET_BYTES = 512 * 2**20  # larger tiles keep a GPU busy: half the time of 128 MiB on an H200
# Tiles alive at once: logits, probabilities, and one more for the entropy, the collision or the soft cap.
LIVE_TILES = 3


class TokenOutputs(NamedTuple):
    logprobs_N: Tensor
    entropy_N: Tensor
    log_collision_N: Tensor


def fused_logprobs(
    hidden_ND: Tensor,
    tokens_N: Tensor,
    head: Head,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    collision: bool = False,
    budget_bytes: int = BUDGET_BYTES,
) -> TokenOutputs:
    """The log-probability of each row's token, and on request (else 0) its distribution's entropy and collision."""
    if not temperature > 0:
        raise ValueError(
            f"temperature={temperature} must be > 0; for greedy text lower it in sampling, not in training"
        )
    if hidden_ND.shape[0] != tokens_N.shape[0]:
        raise ValueError(
            f"{hidden_ND.shape[0]} hidden states for {tokens_N.shape[0]} tokens; there must be one each"
        )
    # On CUDA the check would wait for the GPU; there the embedding has refused such tokens.
    if not tokens_N.is_cuda and tokens_N.numel() and int(tokens_N.max()) >= head.weight_VD.shape[0]:
        raise ValueError(
            f"token {int(tokens_N.max())} in a vocabulary of {head.weight_VD.shape[0]}; the text was tokenized for "
            "another model"
        )
    triton = uses_triton(hidden_ND, head.weight_VD)
    tile = (
        triton_tile(hidden_ND, head.weight_VD, budget_bytes)
        if triton
        else tile_shape(head.weight_VD, budget_bytes)
    )
    config = TileConfig(
        head.scale, head.softcap, temperature, entropy, collision, tile, head.kernels, triton
    )
    return TokenOutputs(
        *_FusedLogprobs.apply(hidden_ND, head.weight_VD, head.bias_V, tokens_N, config)
    )


def tile_shape(weight_VD: Tensor, budget_bytes: int) -> tuple[int, int]:
    """Rows R and columns C of a tile: `strips` C x D, `strips` R x D and `LIVE_TILES` R x C fit into the budget.

    Two strips: widened weights and their gradient, or widened hidden states and theirs.
    """
    size, strips, hidden = widened(weight_VD[:0]).element_size(), 2, weight_VD.shape[1]
    columns = min(weight_VD.shape[0], budget_bytes // 4 // (strips * hidden * size))
    rows = (budget_bytes - strips * columns * hidden * size) // (
        (LIVE_TILES * columns + strips * hidden) * size
    )
    if columns < 1 or rows < 1:
        raise ValueError(
            f"budget_bytes={budget_bytes} cannot hold one tile of logits; use at least "
            f"{8 * (LIVE_TILES + strips * hidden) * size}"
        )
    return rows, columns


def uses_triton(hidden_ND: Tensor, weight_VD: Tensor) -> bool:
    """Whether the kernels of `head_cuda` run: half precision on CUDA."""
    if not hidden_ND.is_cuda:
        return False
    from ascent.models import head_cuda  # triton exists on CUDA machines only

    return head_cuda.supports(hidden_ND, weight_VD)


def triton_tile(hidden_ND: Tensor, weight_VD: Tensor, budget_bytes: int) -> tuple[int, int]:
    """Rows and columns of a tile of `head_cuda`: one tile of gradients is alive, and two strips for each product.

    Few tall tiles: a tile costs four kernels, whatever its size.
    """
    hidden, vocab, size = weight_VD.shape[1], weight_VD.shape[0], weight_VD.element_size()
    rows = min(max(hidden_ND.shape[0], 1), budget_bytes // (4 * hidden * 4))
    columns = (budget_bytes // 2 // (rows * size + 8 * hidden)) // 256 * 256
    return rows, min(vocab, max(256, columns))


class _FusedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        tokens_N: Tensor,
        config: TileConfig,
    ) -> tuple[Tensor, Tensor, Tensor]:
        reduce = (
            _reduce_exact
            if config.kernels.exact
            else _reduce_triton
            if config.triton
            else _reduce_tiles
        )
        lse_N, mean_N, logit_N, collision_N = reduce(hidden_ND, weight_VD, bias_V, tokens_N, config)
        logprobs_N = logit_N - lse_N
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, tokens_N, lse_N, mean_N)
        ctx.config = config
        entropy_N = lse_N - mean_N if config.entropy else torch.zeros_like(lse_N)
        ctx.mark_non_differentiable(collision_N)
        return logprobs_N, entropy_N, collision_N

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_logprobs_N: Tensor, d_entropy_N: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, tokens_N, lse_N, mean_N = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        wide = lse_N.dtype
        d_hidden_ND = (
            torch.zeros(hidden_ND.shape, dtype=wide, device=hidden_ND.device)
            if needs_hidden
            else None
        )
        d_weight_VD = torch.empty_like(weight_VD) if needs_weight else None
        d_bias_V = torch.empty_like(bias_V) if needs_bias else None
        product, gradient = wide_product, _gradient_triton if ctx.config.triton else _tile_gradient
        # Columns outside, rows inside: a strip of the weights' gradient is summed in float32 before it is rounded.
        for columns in slices(weight_VD.shape[0], ctx.config.tile[1]):
            weight_CD = weight_VD[columns]
            strip_CD = (
                torch.zeros(weight_CD.shape, dtype=wide, device=weight_CD.device)
                if needs_weight
                else None
            )
            strip_C = (
                torch.zeros(weight_CD.shape[0], dtype=wide, device=weight_CD.device)
                if needs_bias
                else None
            )
            for rows in slices(tokens_N.numel(), ctx.config.tile[0]):
                upstream = (d_logprobs_N[rows], d_entropy_N[rows], lse_N[rows], mean_N[rows])
                tile = (hidden_ND[rows], weight_CD, None if bias_V is None else bias_V[columns])
                d_RC = gradient(*tile, tokens_N[rows] - columns.start, *upstream, ctx.config)
                narrow_RC = d_RC.to(weight_CD.dtype) if d_RC.is_cuda else d_RC
                if d_hidden_ND is not None:
                    d_hidden_ND[rows] += product(narrow_RC, weight_CD)
                if strip_CD is not None:
                    strip_CD += product(narrow_RC.mT, hidden_ND[rows])
                if strip_C is not None:
                    strip_C += d_RC.sum(0, dtype=wide)
                del d_RC, narrow_RC  # or this tile would be alive while the next one is computed
            if d_weight_VD is not None and strip_CD is not None:
                d_weight_VD[columns] = strip_CD
            if d_bias_V is not None and strip_C is not None:
                d_bias_V[columns] = strip_C
        d_hidden = None if d_hidden_ND is None else d_hidden_ND.to(hidden_ND.dtype)
        return d_hidden, d_weight_VD, d_bias_V, None, None


def slices(total: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, total)) for start in range(0, total, step))


def _reduce_tiles(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    tokens_N: Tensor,
    config: TileConfig,
) -> tuple[Tensor, ...]:
    """lse, mean, the token's logit and the collision of every row."""
    found_4N = torch.zeros(
        4, *tokens_N.shape, dtype=widened(hidden_ND[:0]).dtype, device=hidden_ND.device
    )
    for rows in slices(tokens_N.numel(), config.tile[0]):
        for own_N, own_R in zip(
            found_4N,
            _reduce_rows(hidden_ND[rows], weight_VD, bias_V, tokens_N[rows], config),
            strict=True,
        ):
            own_N[rows] = own_R
    return found_4N.unbind()


def _reduce_triton(*inputs: Any) -> tuple[Tensor, ...]:
    from ascent.models import head_cuda

    return head_cuda.reduce_logits(*inputs)


def _reduce_exact(*inputs: Any) -> tuple[Tensor, ...]:
    from ascent.models import exact_head_cuda

    return exact_head_cuda.reduce_logits(*inputs)


def _gradient_triton(
    hidden_RD: Tensor, weight_CD: Tensor, bias_C: Tensor | None, local_R: Tensor, *rest: Any
) -> Tensor:
    from ascent.models import head_cuda

    return head_cuda.logits_gradient(hidden_RD, weight_CD, bias_C, local_R, rest[:4], rest[4])


def _reduce_rows(
    hidden_RD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    tokens_R: Tensor,
    config: TileConfig,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """lse, mean, the token's logit and the collision of some rows, over tiles of the vocabulary."""
    wide = widened(hidden_RD[:0]).dtype
    top_R = torch.full(tokens_R.shape, -torch.inf, dtype=wide, device=hidden_RD.device)
    mass_R, weighted_R, logit_R, squares_R = (torch.zeros_like(top_R) for _ in range(4))
    for columns in slices(weight_VD.shape[0], config.tile[1]):
        logits_RC = tile_logits(
            hidden_RD, weight_VD[columns], None if bias_V is None else bias_V[columns], config
        )
        in_tile_R = (tokens_R >= columns.start) & (tokens_R < columns.stop)
        local_R = (tokens_R - columns.start).clamp(0, logits_RC.shape[1] - 1)
        logit_R = torch.where(in_tile_R, logits_RC.gather(1, local_R[:, None])[:, 0], logit_R)
        new_R = torch.maximum(top_R, logits_RC.amax(1))
        shrink_R = (top_R - new_R).exp()
        exp_RC = (logits_RC - new_R[:, None]).exp_()
        mass_R = mass_R * shrink_R + exp_RC.sum(1)
        if config.collision:
            squares_R = squares_R * shrink_R.square() + exp_RC.square().sum(1)
        if config.entropy:
            weighted_R = weighted_R * shrink_R + exp_RC.mul_(logits_RC).sum(1)
        top_R = new_R
    collision_R = squares_R.log() - 2 * mass_R.log() if config.collision else squares_R
    return top_R + mass_R.log(), weighted_R / mass_R, logit_R, collision_R


def _tile_gradient(
    hidden_RD: Tensor,
    weight_CD: Tensor,
    bias_C: Tensor | None,
    local_R: Tensor,
    d_logprobs_R: Tensor,
    d_entropy_R: Tensor,
    lse_R: Tensor,
    mean_R: Tensor,
    config: TileConfig,
) -> Tensor:
    """Gradient with respect to one tile of h @ W.T + b.

    d logprob / d l_j = [j = token] - p_j; d entropy / d l_j = -p_j (l_j - mean); then back through temperature, soft
    cap and scale.
    """
    logits_RC = tile_logits(hidden_RD, weight_CD, bias_C, config)
    d_RC = (logits_RC - lse_R[:, None]).exp_()
    if config.entropy:
        d_RC *= (mean_R[:, None] - logits_RC).mul_(d_entropy_R[:, None]).sub_(d_logprobs_R[:, None])
    else:
        d_RC *= -d_logprobs_R[:, None]
    in_tile_R = (local_R >= 0) & (local_R < weight_CD.shape[0])
    token_R1 = torch.where(in_tile_R, d_logprobs_R, 0)[:, None]
    d_RC.scatter_add_(1, local_R.clamp(0, weight_CD.shape[0] - 1)[:, None], token_R1)
    if config.softcap is not None:
        d_RC *= logits_RC.mul_(config.temperature / config.softcap).square_().neg_().add_(1)
    return d_RC.mul_(config.scale / config.temperature)
