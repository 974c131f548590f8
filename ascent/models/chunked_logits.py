"""Whole next-token distributions, for losses that compare two of them, a few rows at a time.

A matrix of logits (tokens x vocabulary) never exists. `Distributions` keeps the hidden states and the head that logits
are made from; `each_row` applies a function of some rows' logits, drops them, and makes them again in the backward
pass. Logits are float32 at least, and the gradient of the head's weights is added up in that precision.

Axes: N tokens whose distribution is wanted, D hidden size, V vocabulary, R rows held at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ascent.maths.logprobs import widened
from ascent.models.fused_logprobs import BUDGET_BYTES, Head

# Tiles of R x V alive at once: logits, log-probs and mixtures of two models, and their gradients.
LIVE_TILES = 16
Function = Callable[[slice, Tensor], Tensor]  # (which rows, their logits) -> one number for each of them


@dataclass(frozen=True)
class ChunkedLogits:
    """The distributions that some tokens of a packed batch were drawn from, in the batch's order."""

    hidden_ND: Tensor
    head: Head
    temperature: float = 1.0
    budget_bytes: int = BUDGET_BYTES

    @property
    def count(self) -> int:
        return self.hidden_ND.shape[0]

    @property
    def vocabulary(self) -> int:
        return self.head.weight_VD.shape[0]

    def detach(self) -> ChunkedLogits:
        weight_VD, bias_V = self.head.weight_VD.detach(), self.head.bias_V
        head = replace(self.head, weight_VD=weight_VD, bias_V=None if bias_V is None else bias_V.detach())
        return replace(self, hidden_ND=self.hidden_ND.detach(), head=head)

    def narrowed(self, vocabulary: int) -> ChunkedLogits:
        """Over the first tokens of the vocabulary alone: two models may differ in rows that no token uses."""
        if vocabulary == self.vocabulary:
            return self
        bias_V = self.head.bias_V
        cut = replace(
            self.head,
            weight_VD=self.head.weight_VD[:vocabulary],
            bias_V=None if bias_V is None else bias_V[:vocabulary],
        )
        return replace(self, head=cut)

    @torch.no_grad()
    def logits(self, rows: slice) -> Tensor:
        """The tempered logits of some rows."""
        head = self.head
        return _finished(_raw(self.hidden_ND[rows], head.weight_VD, head.bias_V, head), head, self.temperature)

    def each_row(self, function: Function) -> Tensor:
        """`function` of every row's logits, N numbers; its gradient reaches the hidden states and the head."""
        found: Tensor = _EachRow.apply(self.hidden_ND, self.head.weight_VD, self.head.bias_V, self, function)
        return found

    @property
    def rows_at_once(self) -> int:
        size = widened(self.hidden_ND[:0]).element_size()
        return max(1, self.budget_bytes // (LIVE_TILES * self.vocabulary * size))


class _EachRow(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, of: ChunkedLogits, function: Function
    ) -> Tensor:
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V)
        ctx.of, ctx.function = replace(of, hidden_ND=hidden_ND[:0]), function  # tensors are kept by save_for_backward
        found_N = torch.zeros(hidden_ND.shape[0], dtype=widened(hidden_ND[:0]).dtype, device=hidden_ND.device)
        for rows in _slices(hidden_ND.shape[0], of.rows_at_once):
            logits_RV = _finished(_raw(hidden_ND[rows], weight_VD, bias_V, of.head), of.head, of.temperature)
            found_N[rows] = function(rows, logits_RV)
        return found_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_found_N: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V = ctx.saved_tensors
        head, product, wide = ctx.of.head, ctx.of.head.form.product, d_found_N.dtype
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        d_hidden_ND = torch.zeros_like(hidden_ND) if wants_hidden else None
        d_weight_VD = torch.zeros(weight_VD.shape, dtype=wide, device=weight_VD.device) if wants_weight else None
        d_bias_V = torch.zeros(weight_VD.shape[0], dtype=wide, device=weight_VD.device) if wants_bias else None
        for rows in _slices(hidden_ND.shape[0], ctx.of.rows_at_once):
            raw_RV = _raw(hidden_ND[rows], weight_VD, bias_V, head).requires_grad_()
            with torch.enable_grad():
                found_R = ctx.function(rows, _finished(raw_RV, head, ctx.of.temperature))
            (d_RV,) = torch.autograd.grad(found_R, raw_RV, d_found_N[rows])
            narrow_RV = d_RV.to(weight_VD.dtype) if d_RV.is_cuda else d_RV
            if d_hidden_ND is not None:
                d_hidden_ND[rows] = product(narrow_RV, weight_VD).to(hidden_ND.dtype)
            if d_weight_VD is not None:
                d_weight_VD += product(narrow_RV.mT, hidden_ND[rows])
            if d_bias_V is not None:
                d_bias_V += d_RV.sum(0)
            del raw_RV, found_R, d_RV, narrow_RV  # or these tiles would still be alive beside the next ones
        d_weight = None if d_weight_VD is None else d_weight_VD.to(weight_VD.dtype)
        d_bias = None if d_bias_V is None or bias_V is None else d_bias_V.to(bias_V.dtype)
        return d_hidden_ND, d_weight, d_bias, None, None


def _raw(hidden_RD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, head: Head) -> Tensor:
    raw_RV = head.form.product(hidden_RD, weight_VD.mT)
    return raw_RV if bias_V is None else raw_RV + bias_V


def _finished(raw_RV: Tensor, head: Head, temperature: float) -> Tensor:
    """What the architecture, then the temperature, makes of h @ W.T + b."""
    logits_RV = raw_RV if head.scale == 1 else raw_RV * head.scale
    if head.softcap is not None:
        logits_RV = head.softcap * torch.tanh(logits_RV / head.softcap)
    return logits_RV if temperature == 1 else logits_RV / temperature


def _slices(total: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, total)) for start in range(0, total, step)]
