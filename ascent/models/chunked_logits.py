"""Full next-token distributions, a few rows at a time, for losses that compare two models.

The matrix of logits (tokens x vocabulary) never exists. `ChunkedLogits` keeps the hidden states and the head;
`map_rows` applies a function to some rows' logits, drops them, and computes them again in the backward pass. Logits are
float32 at least, and the gradient of the head's weights is summed in that precision.

Axes: N tokens whose distribution is needed, D hidden size, V vocabulary, R rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ascent.maths.logprobs import widened
from ascent.models.fused_logprobs import BUDGET_BYTES, slices
from ascent.models.head import Head
from ascent.models.layer_patching import wide_product

# Tiles of R x V alive at once: logits, log-probs and mixtures of two models, and their gradients.
LIVE_TILES = 16
RowFunction = Callable[[slice, Tensor], Tensor]  # (rows, their logits) -> one number per row


@dataclass(frozen=True)
class ChunkedLogits:
    """The distributions that some tokens of a packed batch are sampled from, in the batch's order."""

    hidden_ND: Tensor
    head: Head
    temperature: float = 1.0
    budget_bytes: int = BUDGET_BYTES

    @property
    def count(self) -> int:
        return self.hidden_ND.shape[0]

    @property
    def vocab_size(self) -> int:
        return self.head.weight_VD.shape[0]

    def detach(self) -> ChunkedLogits:
        weight_VD, bias_V = self.head.weight_VD.detach(), self.head.bias_V
        head = replace(
            self.head, weight_VD=weight_VD, bias_V=None if bias_V is None else bias_V.detach()
        )
        return replace(self, hidden_ND=self.hidden_ND.detach(), head=head)

    def truncate_vocab(self, vocab_size: int) -> ChunkedLogits:
        """Over the first `vocab_size` tokens: two models may differ in embeddings that no token uses."""
        if vocab_size == self.vocab_size:
            return self
        bias_V = self.head.bias_V
        head = replace(
            self.head,
            weight_VD=self.head.weight_VD[:vocab_size],
            bias_V=None if bias_V is None else bias_V[:vocab_size],
        )
        return replace(self, head=head)

    @torch.no_grad()
    def logits(self, rows: slice) -> Tensor:
        """The tempered logits of some rows."""
        head = self.head
        return _scale_logits(
            _project(self.hidden_ND[rows], head.weight_VD, head.bias_V, head),
            head,
            self.temperature,
        )

    def map_rows(self, function: RowFunction) -> Tensor:
        """`function` of every row's logits, (N,); differentiable in the hidden states and the head."""
        output: Tensor = _MapRows.apply(
            self.hidden_ND, self.head.weight_VD, self.head.bias_V, self, function
        )
        return output

    @property
    def rows_per_chunk(self) -> int:
        size = widened(self.hidden_ND[:0]).element_size()
        return max(1, self.budget_bytes // (LIVE_TILES * self.vocab_size * size))


class _MapRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        source: ChunkedLogits,
        function: RowFunction,
    ) -> Tensor:
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V)
        ctx.source, ctx.function = (
            replace(source, hidden_ND=hidden_ND[:0]),
            function,
        )  # save_for_backward keeps the tensors
        output_N = torch.zeros(
            hidden_ND.shape[0], dtype=widened(hidden_ND[:0]).dtype, device=hidden_ND.device
        )
        for rows in slices(hidden_ND.shape[0], source.rows_per_chunk):
            logits_RV = _scale_logits(
                _project(hidden_ND[rows], weight_VD, bias_V, source.head),
                source.head,
                source.temperature,
            )
            output_N[rows] = function(rows, logits_RV)
        return output_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output_N: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V = ctx.saved_tensors
        head, product, wide = ctx.source.head, wide_product, d_output_N.dtype
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        d_hidden_ND = torch.zeros_like(hidden_ND) if needs_hidden else None
        d_weight_VD = (
            torch.zeros(weight_VD.shape, dtype=wide, device=weight_VD.device)
            if needs_weight
            else None
        )
        d_bias_V = (
            torch.zeros(weight_VD.shape[0], dtype=wide, device=weight_VD.device)
            if needs_bias
            else None
        )
        for rows in slices(hidden_ND.shape[0], ctx.source.rows_per_chunk):
            raw_RV = _project(hidden_ND[rows], weight_VD, bias_V, head).requires_grad_()
            with torch.enable_grad():
                output_R = ctx.function(rows, _scale_logits(raw_RV, head, ctx.source.temperature))
            (d_RV,) = torch.autograd.grad(output_R, raw_RV, d_output_N[rows])
            narrow_RV = d_RV.to(weight_VD.dtype) if d_RV.is_cuda else d_RV
            if d_hidden_ND is not None:
                d_hidden_ND[rows] = product(narrow_RV, weight_VD).to(hidden_ND.dtype)
            if d_weight_VD is not None:
                d_weight_VD += product(narrow_RV.mT, hidden_ND[rows])
            if d_bias_V is not None:
                d_bias_V += d_RV.sum(0)
            # Or these tiles would be alive while the next ones are computed.
            del raw_RV, output_R, d_RV, narrow_RV
        d_weight = None if d_weight_VD is None else d_weight_VD.to(weight_VD.dtype)
        d_bias = None if d_bias_V is None or bias_V is None else d_bias_V.to(bias_V.dtype)
        return d_hidden_ND, d_weight, d_bias, None, None


def _project(hidden_RD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, head: Head) -> Tensor:
    raw_RV = head.kernels.product(hidden_RD, weight_VD.mT)
    return raw_RV if bias_V is None else raw_RV + bias_V


def _scale_logits(raw_RV: Tensor, head: Head, temperature: float) -> Tensor:
    """The architecture's scale and soft cap, then the temperature."""
    logits_RV = raw_RV if head.scale == 1 else raw_RV * head.scale
    if head.softcap is not None:
        logits_RV = head.softcap * torch.tanh(logits_RV / head.softcap)
    return logits_RV if temperature == 1 else logits_RV / temperature
