"""Exact entropy, cross-entropy and KL over full distributions, from logits, one value per position.

Tokens that a distribution gives no mass to (logit -inf) contribute 0 to its entropy, and an infinite cross-entropy
only where the other distribution does give them mass. Half precision is widened to float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ascent.maths.logprobs import widened
from ascent.parameter_ranges import Fraction, Positive, checked


@checked
def entropy(logits_TV: Tensor, *, temperature: Positive = 1.0) -> Tensor:
    """H = -sum_v p log p, of softmax(logits / temperature)."""
    logs_TV = (widened(logits_TV) / temperature).log_softmax(-1)
    return _expectation(logs_TV, -logs_TV)


@checked
def cross_entropy(
    from_TV: Tensor, to_TV: Tensor, *, temperature: Positive = 1.0, skip_impossible: bool = False
) -> Tensor:
    """-sum_v p log q, with p from `from_TV` and q from `to_TV`; equals entropy(p) + KL(p || q).

    `skip_impossible`: tokens that q gives no mass to contribute 0, and not infinity.
    """
    from_TV, to_TV = ((widened(x_TV) / temperature).log_softmax(-1) for x_TV in (from_TV, to_TV))
    return _expectation(
        from_TV, -to_TV.masked_fill(to_TV == -float("inf"), 0) if skip_impossible else -to_TV
    )


@checked
def kl(from_TV: Tensor, to_TV: Tensor, *, temperature: Positive = 1.0) -> Tensor:
    """KL(p || q) = sum_v p (log p - log q), with p from `from_TV` and q from `to_TV`."""
    p_TV = (widened(from_TV) / temperature).log_softmax(-1)
    return _expectation(p_TV, p_TV - (widened(to_TV) / temperature).log_softmax(-1))


@checked
def jensen_shannon(
    student_TV: Tensor, teacher_TV: Tensor, *, beta: Fraction = 0.5, temperature: Positive = 1.0
) -> Tensor:
    """beta KL(T || M) + (1 - beta) KL(S || M), M = (1 - beta) S + beta T; the plain KLs at the ends.

    beta 0 is KL(T || S), beta 1 is KL(S || T): NOT the limits of the middle form, which vanishes at both ends.
    S = (.5, .5), T = (.9, .1): .368064 at 0, .033603 at .1, .101749 at .5, .043074 at .9, .510826 at 1.
    """
    if beta in (0, 1):
        ends = (teacher_TV, student_TV) if beta == 0 else (student_TV, teacher_TV)
        return kl(*ends, temperature=temperature)
    student_TV, teacher_TV = (
        (widened(x_TV) / temperature).log_softmax(-1) for x_TV in (student_TV, teacher_TV)
    )
    # Where both are impossible the middle is never read, but logaddexp of two infinities has no gradient.
    neither_TV = (student_TV == -float("inf")) & (teacher_TV == -float("inf"))
    middle_TV = torch.logaddexp(
        student_TV.masked_fill(neither_TV, 0) + math.log1p(-beta), teacher_TV + math.log(beta)
    )
    teacher_kl_T = _expectation(teacher_TV, teacher_TV - middle_TV)
    return beta * teacher_kl_T + (1 - beta) * _expectation(student_TV, student_TV - middle_TV)


def log_collision(logits_TV: Tensor) -> Tensor:
    """log sum_v p(v)^2: the probability that two draws agree; (.5, .5) gives log .5."""
    return (2 * widened(logits_TV).log_softmax(-1)).logsumexp(-1)


def _expectation(logs_TV: Tensor, values_TV: Tensor) -> Tensor:
    """sum_v exp(logs) * values, where the value of a token of probability 0 is not read."""
    possible_TV = logs_TV > -float("inf")
    return (
        torch.where(possible_TV, logs_TV, -float("inf")).exp()
        * torch.where(possible_TV, values_TV, 0)
    ).sum(-1)
