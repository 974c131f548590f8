"""Logits to tokens: temperature, truncation, sampling, log-probabilities.

Log-probs are those of the tempered softmax over the full vocabulary. Where tokens are excluded (top-k, then top-p, then
min-p; stop ids before the minimum length), `log_mass` is the log of the probability mass that is left. The token with
the largest p_v / E_v is sampled, where E are exponential numbers keyed by the request (see `counter_rng`).

Axes: B rows, V tokens, S stop ids. p is the softmax times a constant of the row: exp(logit - largest logit). Stop ids
before the minimum length do not count as the largest: beside one that is far likelier all others would be 0.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascent.c_extension import library
from ascent.engines.counter_rng import exponentials
from ascent.engines.native.batch_state import SamplingState
from ascent.models.flash_attention import FIXED_ORDER
from ascent.models.head import Head, head_logits


class SamplerOutput(NamedTuple):
    tokens_B: Tensor
    logprobs_B: Tensor
    log_mass_B: Tensor | None


def sample(logits_BV: Tensor, params: SamplingState, *, truncates: bool) -> SamplerOutput:
    """One token per row. `truncates`: some row may exclude tokens. Overwrites the logits."""
    if logits_BV.is_cuda and not truncates:
        from ascent.engines.native.sampling_triton import sample_full_vocab_cuda

        return SamplerOutput(*sample_full_vocab_cuda(logits_BV, params), None)
    logits_BV.div_(params.temperature_B[:, None])
    p_BV = logits_BV.sub_(logits_BV.amax(1, keepdim=True)).exp()
    mass_B = p_BV.sum(1)
    log_mass_B = None
    allowed_BV = p_BV
    if truncates:
        late_BV = logits_BV.masked_fill(_is_early_end(logits_BV, params), -torch.inf)
        largest_B1 = late_BV.amax(1, keepdim=True)  # 0 where the likeliest token is not excluded
        allowed_BV = _truncate(late_BV.sub_(largest_B1).exp_(), params)
        log_mass_B = (allowed_BV.sum(1) / mass_B).log() + largest_B1[:, 0]
    tokens_B = (_choose_cuda if logits_BV.is_cuda else _choose)(logits_BV, allowed_BV, params)
    logprobs_B = logits_BV.gather(1, tokens_B[:, None])[:, 0] - mass_B.log()
    return SamplerOutput(tokens_B, logprobs_B, log_mass_B)


def sample_hidden(
    hidden_BD: Tensor, head: Head, params: SamplingState, *, truncates: bool
) -> SamplerOutput:
    """One token per row from its hidden state, on CUDA. In exact arithmetic its log-prob is the trainer's."""
    sampled = sample(head_logits(hidden_BD, head), params, truncates=truncates)
    if not (truncates and head.kernels.exact):
        return sampled
    from ascent.models.exact_head_cuda import token_logprobs  # triton exists on CUDA machines only

    logprobs_B = token_logprobs(hidden_BD, head, sampled.tokens_B, params.temperature_B)
    return sampled._replace(logprobs_B=logprobs_B)


def sample_full_vocab(
    logits_BV: Tensor, keys_B2: Any, position_B: Any, temperature_B: Any | None
) -> tuple[Any, Any]:
    """`sample` on a CPU where no row is greedy or truncates: the same bits, faster. `temperature_B`: None if all are 1.

    In numpy, whose calls have less overhead, except where torch has a vector kernel.
    """
    z_BV = logits_BV.numpy()
    if temperature_B is not None:
        np.divide(z_BV, temperature_B[:, None], z_BV)
    np.subtract(z_BV, z_BV.max(1, keepdims=True), z_BV)
    p_BV = logits_BV.exp()
    tokens_B = gumbel_argmax(p_BV.numpy(), keys_B2, position_B)
    return tokens_B, z_BV[np.arange(len(tokens_B)), tokens_B] - p_BV.sum(1).log_().numpy()


def gumbel_argmax(
    p_BV: NDArray[np.float32], keys_B2: NDArray[np.uint32], position_B: NDArray[np.int32]
) -> NDArray[np.int64]:
    """The token with the largest p / E in each row, the first of equals, on a CPU."""
    functions = library()
    if functions is None:
        ratio_BV = exponentials(keys_B2, position_B, p_BV.shape[1]).numpy()
        np.divide(p_BV, ratio_BV, ratio_BV)
        return ratio_BV.argmax(1)
    tokens_B = np.empty(len(p_BV), dtype=np.int64)
    dtypes = (
        (p_BV, np.float32),
        (keys_B2, np.uint32),
        (position_B, np.int32),
        (tokens_B, np.int64),
    )
    arrays: list[NDArray[Any]] = [np.ascontiguousarray(each, dtype=dtype) for each, dtype in dtypes]
    p, keys, position, tokens = (ctypes.c_void_p(each.ctypes.data) for each in arrays)
    functions.gumbel_argmax(p, keys, position, *p_BV.shape, tokens)
    return tokens_B


def _choose(logits_BV: Tensor, allowed_BV: Tensor, params: SamplingState) -> Tensor:
    greedy_B = params.greedy_B.numpy() != 0
    if greedy_B.all():
        return _most_likely(logits_BV, allowed_BV)
    keys_B2 = np.stack([params.key0_B.numpy(), params.key1_B.numpy()], 1).view(np.uint32)
    sampled_B = torch.from_numpy(
        gumbel_argmax(allowed_BV.numpy(), keys_B2, params.position_B.numpy())
    )
    if not greedy_B.any():
        return sampled_B
    return torch.where(torch.from_numpy(greedy_B), _most_likely(logits_BV, allowed_BV), sampled_B)


def _choose_cuda(logits_BV: Tensor, allowed_BV: Tensor, params: SamplingState) -> Tensor:
    from ascent.engines.native.sampling_triton import exponentials_cuda

    sampled_B = (allowed_BV / exponentials_cuda(params, allowed_BV.shape[1])).argmax(1)
    return torch.where(params.greedy_B.bool(), _most_likely(logits_BV, allowed_BV), sampled_B)


def _most_likely(logits_BV: Tensor, allowed_BV: Tensor) -> Tensor:
    """By logits, not by p: the exponential rounds close values to the same number."""
    return logits_BV.masked_fill(allowed_BV == 0, -torch.inf).argmax(1)


def _is_early_end(logits_BV: Tensor, params: SamplingState) -> Tensor:
    """Which tokens would end a row before its minimum length."""
    early_BS = (params.position_B < params.min_output_len_B)[:, None] & (params.stop_ids_BS >= 0)
    stop_ids_BS = params.stop_ids_BS.clamp(min=0).long()
    return (
        torch.zeros_like(logits_BV, dtype=torch.int32).scatter_add_(1, stop_ids_BS, early_BS.int())
        > 0
    )


def _truncate(p_BV: Tensor, params: SamplingState) -> Tensor:
    """p where a token is allowed, else 0. Tokens that tie with the last allowed one are allowed."""
    if (
        not p_BV.is_cuda
        and not ((params.top_k_B > 0) | (params.top_p_B < 1) | (params.min_p_B > 0)).any()
    ):
        return p_BV  # sorting the vocabulary can take longer than a small model's step
    sorted_BV = p_BV.sort(1, descending=True).values
    rank_V = torch.arange(p_BV.shape[1], device=p_BV.device)
    top_k_B = torch.where(params.top_k_B > 0, params.top_k_B, p_BV.shape[1])
    sorted_BV = sorted_BV.masked_fill(rank_V >= top_k_B[:, None], 0)
    with FIXED_ORDER:  # cumsum of floats raises on CUDA while torch's flag is set
        before_BV = sorted_BV.cumsum(1) - sorted_BV
    keep_BV = before_BV < (params.top_p_B * sorted_BV.sum(1))[:, None]
    keep_BV |= (params.top_p_B >= 1)[
        :, None
    ]  # rounding of the sums must not cut a row with top_p 1
    keep_BV &= sorted_BV >= (params.min_p_B * sorted_BV[:, 0])[:, None]
    keep_BV &= sorted_BV > 0
    count_B = keep_BV.sum(1).clamp(min=1)
    threshold_B1 = sorted_BV.gather(1, (count_B - 1)[:, None])
    return p_BV.masked_fill(p_BV < threshold_B1, 0)
