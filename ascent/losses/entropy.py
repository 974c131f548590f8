"""The entropy bonus. Axes: T flat tokens. `entropy_T` is the exact entropy over the vocabulary, with its gradient.

-log pi(token) is an unbiased sample of the entropy, but its gradient as a loss is not the entropy's: it is not offered.
"""

from __future__ import annotations

from torch import Tensor

from ascent.maths import masked


def bonus(entropy_T: Tensor, trained_T: Tensor) -> Tensor:
    """Minus the exact entropy of each trained token's distribution: minimising it keeps the policy open."""
    return -masked.kept(entropy_T, trained_T)
