"""Adam on one flat vector, so that clipping and stepping are single operations.

Parameters and gradients become views of two flat buffers. For a policy and critic of 64 x 64 this saves a tenth of
a minibatch step. The gradient norm is clipped over all parameters together. K is the flat axis.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class FlatAdam:
    """Takes over the parameters it is given: their data and gradients live in its flat buffers from then on."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        eps: float = 1e-8,
        norm: float | None = None,
    ) -> None:
        """`norm` is the largest length of a gradient; longer ones are scaled down to it."""
        some = list(parameters)
        self.values_K = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in some]))
        self.values_K.grad = self.slope_K = torch.zeros_like(self.values_K)
        self.norm = norm
        place = 0
        for p in some:
            span = slice(place, place + p.numel())
            p.data = self.values_K.data[span].view_as(p)
            p.grad = self.slope_K[span].view_as(p)
            place += p.numel()
        self.adam = torch.optim.Adam([self.values_K], lr=lr, eps=eps, fused=True)

    def set_lr(self, lr: float) -> None:
        self.adam.param_groups[0]["lr"] = lr

    def descend(self, loss: Tensor) -> float:
        """One step down the gradient of `loss`; the gradient's length before clipping."""
        self.slope_K.zero_()
        loss.backward()
        length = float(torch.linalg.vector_norm(self.slope_K))
        if self.norm is not None and length > self.norm:
            self.slope_K.mul_(self.norm / (length + 1e-6))
        self.adam.step()
        return length
