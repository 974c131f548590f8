"""Log-ratios between the policy and the old policy, per token or per sequence.

Axes: T flat tokens. All take log-probs of the current policy (with gradient) and of the old one (without), and return
log ratios per trained token, 0 elsewhere.

Worked example: differences d = [.2, -.3, .1] in one sequence.
  token               [.2, -.3, .1]
  sequence_product    [0, 0, 0]            (the sum, on every token)
  sequence_geometric  [0, 0, 0]            (the mean, on every token; gradient 1/3 from each token)
  sequence_geometric_token                 (value of the mean, gradient of each token's own log-prob: GSPO-token)

`guard` bounds |log ratio| before exp so that float32 cannot overflow; beyond it the gradient is 0, which is why
`guarded` counts how often that happens. It is far outside what training should ever reach.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from ascent.maths import masked
from ascent.maths.segments import Segments
from ascent.parameter_ranges import RARE, Positive, checked

GUARD = 20.0
Guard = Annotated[Positive, RARE]


def none(logprobs_T: Tensor, loss_mask_T: Tensor) -> Tensor:
    """No ratio: exactly 1 in value, with the gradient of the log-prob (on-policy by assumption)."""
    kept_T = masked.kept(logprobs_T, loss_mask_T)
    return kept_T - kept_T.detach()


@checked
def token(
    logprobs_T: Tensor, old_logprobs_T: Tensor, loss_mask_T: Tensor, *, guard: Guard = GUARD
) -> Tensor:
    """Each token on its own: log pi - log pi_old (PPO, GRPO)."""
    return differences(logprobs_T, old_logprobs_T, loss_mask_T).clamp(-guard, guard)


@checked
def sequence_product(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    *,
    guard: Guard = GUARD,
) -> Tensor:
    """The whole completion as one action: the sum over its tokens (bandit view, RLOO); explodes with length."""
    summed_B = segments.sum(differences(logprobs_T, old_logprobs_T, loss_mask_T))
    return masked.kept(segments.broadcast(summed_B.clamp(-guard, guard)), loss_mask_T)


@checked
def sequence_geometric(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    *,
    guard: Guard = GUARD,
) -> Tensor:
    """The mean over the completion's tokens: the geometric-mean ratio of GSPO (arXiv 2507.18071)."""
    mean_B = segments.mean(differences(logprobs_T, old_logprobs_T, loss_mask_T), loss_mask_T)
    return masked.kept(segments.broadcast(mean_B.clamp(-guard, guard)), loss_mask_T)


@checked
def sequence_geometric_token(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    *,
    guard: Guard = GUARD,
) -> Tensor:
    """GSPO-token: the sequence's mean in value, each token's own log-prob in gradient; allows per-token advantages."""
    level_T = sequence_geometric(
        logprobs_T, old_logprobs_T, loss_mask_T, segments, guard=guard
    ).detach()
    return level_T + none(logprobs_T, loss_mask_T)


def differences(logprobs_T: Tensor, old_logprobs_T: Tensor, loss_mask_T: Tensor) -> Tensor:
    """log pi - log pi_old on trained tokens, an exact 0 elsewhere; no gradient reaches the old policy."""
    if logprobs_T.shape != old_logprobs_T.shape:
        raise ValueError(
            f"log-probs of shape {tuple(logprobs_T.shape)} against old ones {tuple(old_logprobs_T.shape)}"
        )
    return masked.kept(logprobs_T, loss_mask_T) - masked.kept(old_logprobs_T.detach(), loss_mask_T)


def guarded(
    logprobs_T: Tensor, old_logprobs_T: Tensor, loss_mask_T: Tensor, guard: float = GUARD
) -> Tensor:
    """Which tokens the guard of `token` would cut (for the metric that must stay 0)."""
    return differences(logprobs_T.detach(), old_logprobs_T, loss_mask_T).abs() > guard
