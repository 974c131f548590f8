"""From logits to tokens: temperature, what may be drawn, the draw, and its log-probability.

Log-probabilities are those of the tempered softmax over the whole vocabulary. Where some tokens cannot be drawn (top-k,
then top-p, then min-p; stop ids before the least length), `log_mass` is the log of the mass that was left to draw from.
The draw is a race: token v wins with p_v / E_v, the exponential numbers E keyed by who asks (see `noise`).

Axes: B rows, V tokens, S stop ids. p is the softmax times a constant of the row: exp(logit - largest logit).
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


class Drawn(NamedTuple):
    tokens_B: Tensor
    logprobs_B: Tensor
    log_mass_B: Tensor | None


def draw(logits_BV: Tensor, ask: SamplingState, *, cut: bool) -> Drawn:
    """One token a row. `cut` says that some row may not draw from the whole vocabulary. Overwrites the logits."""
    if logits_BV.is_cuda and not cut:
        from ascent.engines.native.sampling_triton import draw_whole

        return Drawn(*draw_whole(logits_BV, ask), None)
    logits_BV.div_(ask.temperature_B[:, None])
    p_BV = logits_BV.sub_(logits_BV.amax(1, keepdim=True)).exp()
    mass_B = p_BV.sum(1)
    log_mass_B = None
    open_BV = p_BV
    if cut:
        open_BV = _open(p_BV, ask)
        log_mass_B = (open_BV.sum(1) / mass_B).log()
    tokens_B = (_winners_on_cuda if logits_BV.is_cuda else _winners)(logits_BV, open_BV, ask)
    logprobs_B = logits_BV.gather(1, tokens_B[:, None])[:, 0] - mass_B.log()
    return Drawn(tokens_B, logprobs_B, log_mass_B)


def draw_reference(logits_BV: Tensor, words_B2: Any, position_B: Any, temperature_B: Any | None) -> tuple[Any, Any]:
    """`draw` on a CPU where no row is greedy or cut: the same bits, sooner. `temperature_B`: None where all are 1.

    Everything here is numpy's, which begins quickly, except what torch has as a vector kernel.
    """
    z_BV = logits_BV.numpy()
    if temperature_B is not None:
        np.divide(z_BV, temperature_B[:, None], z_BV)
    np.subtract(z_BV, z_BV.max(1, keepdims=True), z_BV)
    p_BV = logits_BV.exp()
    tokens_B = gumbel_argmax(p_BV.numpy(), words_B2, position_B)
    return tokens_B, z_BV[np.arange(len(tokens_B)), tokens_B] - p_BV.sum(1).log_().numpy()


def gumbel_argmax(
    p_BV: NDArray[np.float32], words_B2: NDArray[np.uint32], position_B: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Who wins in each row, on a CPU: the first of the largest p / E."""
    functions = library()
    if functions is None:
        race_BV = exponentials(words_B2, position_B, p_BV.shape[1]).numpy()
        np.divide(p_BV, race_BV, race_BV)
        return race_BV.argmax(1)
    tokens_B = np.empty(len(p_BV), dtype=np.int64)
    kinds = ((p_BV, np.float32), (words_B2, np.uint32), (position_B, np.int32), (tokens_B, np.int64))
    arrays: list[NDArray[Any]] = [np.ascontiguousarray(each, dtype=kind) for each, kind in kinds]
    p, words, position, tokens = (ctypes.c_void_p(each.ctypes.data) for each in arrays)
    functions.race(p, words, position, *p_BV.shape, tokens)
    return tokens_B


def _winners(logits_BV: Tensor, open_BV: Tensor, ask: SamplingState) -> Tensor:
    greedy_B = ask.greedy_B.numpy() != 0
    if greedy_B.all():
        return _likeliest(logits_BV, open_BV)
    words_B2 = np.stack([ask.word0_B.numpy(), ask.word1_B.numpy()], 1).view(np.uint32)
    raced_B = torch.from_numpy(gumbel_argmax(open_BV.numpy(), words_B2, ask.position_B.numpy()))
    if not greedy_B.any():
        return raced_B
    return torch.where(torch.from_numpy(greedy_B), _likeliest(logits_BV, open_BV), raced_B)


def _winners_on_cuda(logits_BV: Tensor, open_BV: Tensor, ask: SamplingState) -> Tensor:
    from ascent.engines.native.sampling_triton import exponentials_on_cuda

    raced_B = (open_BV / exponentials_on_cuda(ask, open_BV.shape[1])).argmax(1)
    return torch.where(ask.greedy_B.bool(), _likeliest(logits_BV, open_BV), raced_B)


def _likeliest(logits_BV: Tensor, open_BV: Tensor) -> Tensor:
    """By the logits, not by p: the exponential rounds neighbours together."""
    return logits_BV.masked_fill(open_BV == 0, -torch.inf).argmax(1)


def _open(p_BV: Tensor, ask: SamplingState) -> Tensor:
    """p where a token may be drawn, else 0. Tokens that tie with the last one kept are kept."""
    early_BS = (ask.position_B < ask.least_B)[:, None] & (ask.stops_BS >= 0)
    stops_BS = ask.stops_BS.clamp(min=0).long()
    barred_BV = torch.zeros_like(p_BV, dtype=torch.int32).scatter_add_(1, stops_BS, early_BS.int())
    p_BV = p_BV.masked_fill(barred_BV > 0, 0)
    falling_BV = p_BV.sort(1, descending=True).values
    rank_V = torch.arange(p_BV.shape[1], device=p_BV.device)
    most_B = torch.where(ask.top_k_B > 0, ask.top_k_B, p_BV.shape[1])
    falling_BV = falling_BV.masked_fill(rank_V >= most_B[:, None], 0)
    before_BV = falling_BV.cumsum(1) - falling_BV
    kept_BV = before_BV < (ask.top_p_B * falling_BV.sum(1))[:, None]
    kept_BV |= (ask.top_p_B >= 1)[:, None]  # rounding of the sums must not cut a row that asked for all
    kept_BV &= falling_BV >= (ask.min_p_B * falling_BV[:, 0])[:, None]
    kept_BV &= falling_BV > 0
    count_B = kept_BV.sum(1).clamp(min=1)
    floor_B1 = falling_BV.gather(1, (count_B - 1)[:, None])
    return p_BV.masked_fill(p_BV < floor_B1, 0)
