"""torch's flash kernel for packed sequences on CUDA.

It is called directly: the dispatch of `varlen_attn` takes longer than the kernel.

Axes: T flat tokens, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# torch has one flag for all threads. Where it is set, operations without a fixed order raise, whoever calls them: a
# thread that samples while another trains takes the lock before such an operation.
FIXED_ORDER = threading.Lock()


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_THD: Tensor,
        k_TKD: Tensor,
        v_TKD: Tensor,
        offsets: Tensor,
        key_offsets: Tensor,
        *rest: Any,
    ) -> Tensor:
        max_queries, max_len, scaling, left = rest
        # A copy: values may be a view of a wider product, which would be kept with them.
        tensors = (q_THD, k_TKD, v_TKD.contiguous(), offsets, key_offsets)
        window = {"scale": scaling, "window_size_left": left, "window_size_right": 0}
        out_THD, lse, rng_state, unused, _ = torch.ops.aten._flash_attention_forward(
            *tensors, max_queries, max_len, 0.0, left == -1, False, **window
        )
        ctx.save_for_backward(*tensors, out_THD, lse, rng_state, unused)
        ctx.sizes, ctx.window = (max_queries, max_len), window
        return out_THD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_THD: Tensor) -> tuple[Tensor | None, ...]:
        q_THD, k_TKD, v_TKD, offsets, key_offsets, out_THD, lse, rng_state, unused = (
            ctx.saved_tensors
        )
        gradients = flash_backward(
            *(
                d_THD.contiguous(),
                q_THD,
                k_TKD,
                v_TKD,
                out_THD,
                lse,
                offsets,
                key_offsets,
                *ctx.sizes,
                0.0,
            ),
            *(ctx.window["window_size_left"] == -1, rng_state, unused),
            **ctx.window,
        )
        return *gradients, *[None] * 6


def flash_backward(*args: Any, **options: Any) -> Sequence[Tensor]:
    """torch's flash kernel.

    It adds the gradient of the queries in a fixed order only where that is asked for; else a run that is repeated or
    resumed ends in other weights.
    """
    with FIXED_ORDER:
        before = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(True)  # with warn_only it would only warn
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        try:
            gradients: Sequence[Tensor] = torch.ops.aten._flash_attention_backward(*args, **options)
        finally:
            torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    return gradients
