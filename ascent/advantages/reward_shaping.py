"""Reward shaping, in a fixed order: rules on the sequence's score, clipping, then per-token terms.

Axes: T flat tokens, B sequences. Functions on `rewards_B` return new sequence rewards; `kl_penalty` returns a per-token
term that is ADDED to the rewards; `whiten_rewards` comes last and returns new token rewards. Nothing here carries a
gradient.

Worked example: log-probs old [-1, -2, -.5, -.1], reference [-1.2, -1.5, -.5, -.3], beta .1, score 1 on the last token:
token rewards [-.02, .05, 0, .98], reward-to-go [1.01, 1.03, .98, .98].
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.maths import masked
from ascent.maths.segments import Segments
from ascent.parameter_ranges import Count, Fraction, NonNegative, Positive, checked, ordered


def eos_replace(rewards_B: Tensor, truncated_B: Tensor, *, score: float = -1.0) -> Tensor:
    """A completion that never ended gets `score` instead of its own (the EOS rule of OpenAI's RLHF and N+)."""
    return torch.where(truncated_B, score, rewards_B)


@checked
def eos_subtract(rewards_B: Tensor, truncated_B: Tensor, *, penalty: NonNegative = 1.0) -> Tensor:
    """A completion that never ended loses `penalty` (TRL's variant of the EOS rule)."""
    return torch.where(truncated_B, rewards_B - penalty, rewards_B)


@checked
def eos_scale(rewards_B: Tensor, truncated_B: Tensor, *, factor: Fraction = 0.5) -> Tensor:
    """A completion that never ended keeps `factor` of its score (OpenRLHF's stop-properly penalty)."""
    return torch.where(truncated_B, factor * rewards_B, rewards_B)


@checked
@ordered("cache", "max_length")
def soft_overlong(
    rewards_B: Tensor,
    lengths_B: Tensor,
    *,
    max_length: Count,
    cache: Count,
    penalty: Positive = 1.0,
) -> Tensor:
    """DAPO's overlong punishment: 0 up to max_length - cache, then linearly down to -penalty at max_length and beyond.

    max_length 100, cache 20: length 80 costs 0, 90 costs .5, 100 and more cost 1. The paper's penalty is half of what
    lies between the rewards of a wrong and a right answer: 1 for rewards of -1 and 1, .5 for rewards of 0 and 1.
    """
    over_B = (lengths_B - (max_length - cache)).to(rewards_B.dtype) / cache
    return rewards_B - penalty * over_B.clamp(0, 1)


@checked
@ordered("low", "high")
def clip(rewards_B: Tensor, *, low: float, high: float) -> Tensor:
    """Clip rewards to [low, high], before any baseline."""
    return rewards_B.clamp(low, high)


@checked
def kl_penalty(
    old_logprobs_T: Tensor, ref_logprobs_T: Tensor, loss_mask_T: Tensor, *, beta: NonNegative
) -> Tensor:
    """-beta (log pi_old - log pi_ref) at every trained token: KL in the reward, estimator k1, fixed at rollout."""
    return -beta * masked.kept(old_logprobs_T - ref_logprobs_T, loss_mask_T).detach()


def whiten_rewards(rewards_T: Tensor, loss_mask_T: Tensor) -> Tensor:
    """All token rewards, KL included, divided by their std over the batch's trained tokens; the mean stays.

    OpenAI's RLHF does this, N+ can. Rewards [0, 0, 0, 1] have mean .25 and std .5: [-.25, -.25, -.25, 1.75].
    """
    return masked.whiten(rewards_T, loss_mask_T, shift_mean=False)


def on_last_token(rewards_B: Tensor, loss_mask_T: Tensor, segments: Segments) -> Tensor:
    """Each sequence's reward on its last trained token, 0 elsewhere; a sequence that trains none places nothing.

    The last TRAINED token, not the last token: behind a closing observation the reward would never reach the policy.
    """
    return torch.where(segments.last(loss_mask_T), segments.broadcast(rewards_B), 0)
