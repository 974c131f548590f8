"""The entropy bonus. Axes: T flat tokens. `entropy_T` is the exact entropy over the vocabulary, with its gradient.

-log pi(token) is an unbiased sample of the entropy, but its gradient as a loss is not the entropy's: it is not offered.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from ascent.cells import step_statistic
from ascent.maths import masked
from ascent.parameter_ranges import RARE, NonNegative, Positive, checked, ordered


def bonus(entropy_T: Tensor, loss_mask_T: Tensor) -> Tensor:
    """Minus the exact entropy of each trained token's distribution: minimizing it keeps the policy exploring."""
    return -masked.kept(entropy_T, loss_mask_T)


@checked
@ordered("smallest", "largest")
def thermostat(
    entropy_T: Tensor,
    loss_mask_T: Tensor,
    entropy_memory: Tensor | None = None,
    *,
    target: NonNegative = 0.2,
    change: Annotated[Positive, RARE] = 0.005,
    smallest: Annotated[NonNegative, RARE] = 0.0,
    largest: Annotated[NonNegative, RARE] = 1.0,
) -> Tensor:
    """(coefficient of this step, stored coefficient, entropy of this step): Skywork-OR1's rule (arXiv 2505.22312).

    The bonus is on only while the step before was at or below the target (never in the first step). The stored
    coefficient goes up by `change` after such a step and down after any other. Steps of entropy .1, .1, .3 with target
    .2 use 0, .005, .01 and store .005, which the step after .3 does not use.
    """
    measured = masked.mean(entropy_T.detach(), loss_mask_T)
    if entropy_memory is None:
        stored, before = measured.new_tensor(smallest), measured.new_tensor(float("inf"))
    else:
        _, stored, before = entropy_memory.to(measured)
    now = torch.where(before <= target, stored, 0)
    if not bool(loss_mask_T.any()):  # nothing was measured: the next step uses the one before
        return torch.stack([now, stored, before])
    step = torch.where(measured <= target, change, -change)
    return torch.stack([now, (stored + step).clamp(smallest, largest), measured])


@step_statistic(entropy_memory=thermostat)
def adaptive_bonus(entropy_T: Tensor, loss_mask_T: Tensor, entropy_memory: Tensor) -> Tensor:
    """The entropy bonus with a coefficient that rises while the entropy is at or below a target and is 0 otherwise."""
    return entropy_memory[0].detach() * bonus(entropy_T, loss_mask_T)
