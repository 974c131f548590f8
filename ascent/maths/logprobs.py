"""Log-probabilities of given tokens, with the shift by one position.

Axes: T flat tokens, V vocabulary. Logits at position p score the token at p + 1. `next_token_logprobs` returns, at each
token, the log-probability of that token given what came before it in its own segment, and 0 at a segment's first token.
Half-precision logits are widened to float32 before the log-softmax; the temperature divides them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.maths.segments import Segments
from ascent.parameter_ranges import Positive, checked


@checked
def token_logprobs(logits_TV: Tensor, tokens_T: Tensor, *, temperature: Positive = 1.0) -> Tensor:
    """log softmax(logits / temperature) at the given tokens, position by position (no shift)."""
    if logits_TV.shape[:-1] != tokens_T.shape:
        raise ValueError(
            f"logits for {tuple(logits_TV.shape[:-1])} positions, tokens {tuple(tokens_T.shape)}"
        )
    scaled_TV = widened(logits_TV) / temperature
    picked_T = scaled_TV.gather(-1, tokens_T.unsqueeze(-1)).squeeze(-1)
    return picked_T - scaled_TV.logsumexp(-1)


@checked
def next_token_logprobs(
    logits_TV: Tensor, tokens_T: Tensor, segments: Segments, *, temperature: Positive = 1.0
) -> Tensor:
    """Log-probability of each token given its own segment's past; 0 at the first token of a segment.

    The shift is taken on the flat axis, then segment borders are cut: the last position of one sequence never scores
    the first token of the next.
    """
    segments.check(logits_TV, tokens_T)
    scored_T = token_logprobs(logits_TV[:-1], tokens_T[1:], temperature=temperature)
    inside_T = segments.ids_T[1:] == segments.ids_T[:-1]
    return torch.cat([scored_T.new_zeros(1), torch.where(inside_T, scored_T, 0)])


def widened(x: Tensor) -> Tensor:
    """At least float32: bfloat16 and float16 are widened, float64 stays."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - e^x) for x < 0, without losing digits at either end; x >= 0 is clamped just below 0."""
    x = x.clamp(max=-torch.finfo(x.dtype).tiny)
    near = x > -0.6931471805599453
    # Each branch sees only arguments it is safe for, or the other branch's NaN would spoil the gradient.
    return torch.where(
        near,
        torch.log(-torch.expm1(torch.where(near, x, -1.0))),
        torch.log1p(-torch.exp(torch.where(near, -1.0, x))),
    )
