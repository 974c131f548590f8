"""Exact entropy, cross-entropy and KL over full distributions, from logits, one value per position.

Tokens that a distribution gives no mass to (logit -inf) contribute 0 to its entropy, and an infinite cross-entropy
only where the other distribution does give them mass. Half precision is widened to float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.bounds import Positive, checked
from ascent.maths.logprobs import widened


@checked
def entropy(logits_TV: Tensor, *, temperature: Positive = 1.0) -> Tensor:
    """H = -sum_v p log p, of softmax(logits / temperature)."""
    logs_TV = (widened(logits_TV) / temperature).log_softmax(-1)
    return _expectation(logs_TV, -logs_TV)


@checked
def cross_entropy(from_TV: Tensor, to_TV: Tensor, *, temperature: Positive = 1.0) -> Tensor:
    """-sum_v p log q, with p from `from_TV` and q from `to_TV`; equals entropy(p) + KL(p || q)."""
    logs_TV = (widened(from_TV) / temperature).log_softmax(-1)
    return _expectation(logs_TV, -(widened(to_TV) / temperature).log_softmax(-1))


@checked
def kl(from_TV: Tensor, to_TV: Tensor, *, temperature: Positive = 1.0) -> Tensor:
    """KL(p || q) = sum_v p (log p - log q), with p from `from_TV` and q from `to_TV`."""
    p_TV = (widened(from_TV) / temperature).log_softmax(-1)
    return _expectation(p_TV, p_TV - (widened(to_TV) / temperature).log_softmax(-1))


def _expectation(logs_TV: Tensor, values_TV: Tensor) -> Tensor:
    """sum_v exp(logs) * values, where a probability of 0 silences its value, infinite or not."""
    possible_TV = logs_TV > -float("inf")
    return (torch.where(possible_TV, logs_TV, -float("inf")).exp() * torch.where(possible_TV, values_TV, 0)).sum(-1)
