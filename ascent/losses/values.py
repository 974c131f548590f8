"""Value losses of the critic, per token. Axes: T flat tokens. Targets and old values carry no gradient.

All have the factor 1/2. `radius` is in units of the reward: it means something only when rewards are of order 1.
Worked example: V [.45, .2], V_old [.1, .1], targets [.4, 1], radius .2: clipped .1625, mse .160625 (means).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.maths import masked
from ascent.parameter_ranges import Positive, checked


def mse(values_T: Tensor, returns_T: Tensor, loss_mask_T: Tensor) -> Tensor:
    """Half the squared error."""
    return 0.5 * _error(values_T, returns_T, loss_mask_T) ** 2


@checked
def clipped(
    values_T: Tensor,
    old_values_T: Tensor,
    returns_T: Tensor,
    loss_mask_T: Tensor,
    *,
    radius: Positive = 0.2,
) -> Tensor:
    """The worse of the squared error and that of the value clipped near the old one (PPO's value clip)."""
    old_values_T = old_values_T.detach()
    near_T = old_values_T + (values_T - old_values_T).clamp(-radius, radius)
    return torch.maximum(mse(values_T, returns_T, loss_mask_T), mse(near_T, returns_T, loss_mask_T))


@checked
def huber(
    values_T: Tensor, returns_T: Tensor, loss_mask_T: Tensor, *, delta: Positive = 10.0
) -> Tensor:
    """Squared near 0, linear beyond `delta`: one outlier return cannot dominate the step."""
    size_T = _error(values_T, returns_T, loss_mask_T).abs()
    return torch.where(size_T <= delta, 0.5 * size_T**2, delta * (size_T - 0.5 * delta))


def _error(values_T: Tensor, returns_T: Tensor, loss_mask_T: Tensor) -> Tensor:
    return masked.kept(values_T, loss_mask_T) - masked.kept(returns_T.detach(), loss_mask_T)
