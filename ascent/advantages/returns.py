"""Returns and critic-based advantages on packed tokens: Monte Carlo, TD, n-step, GAE and its two refinements.

Axes: T flat tokens, B sequences. `values_T` at a token is the critic's value of the state BEFORE that token was chosen.
Every recursion runs over the trained (policy) tokens only: an observation token between two of them is stepped over,
neither discounted nor decayed through, and whatever reward lies on it is not read. The state after a
sequence's last policy token is worth `bootstrap_B` of that sequence: 0 (the default) where it ended, the critic's value
where it was cut off and is to be bootstrapped.

Worked example, one sequence: r = [0, 0, 0, 1], V = [.2, .4, .1, .6], gamma 1.
  td            [.2, -.3, .5, .4]
  gae lam .95   [.7092, .536, .88, .4]
  monte carlo   [.8, .6, .9, .4]
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.advantages.advantage import TokenAdvantage
from ascent.maths.reverse_scan import next_in_segment, reverse_scan
from ascent.maths.segments import Segments
from ascent.parameter_ranges import Count, Fraction, Positive, checked


@checked
def reward_to_go(
    rewards_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    bootstrap_B: Tensor | None = None,
    *,
    gamma: Fraction = 1.0,
) -> TokenAdvantage:
    """Discounted sum of this and all later rewards of the sequence: REINFORCE's weight, no baseline."""
    steps = _Steps(loss_mask_T, segments)
    return steps.credit(_discounted(steps, rewards_T, bootstrap_B, gamma))


@checked
def whole_return(
    rewards_T: Tensor, loss_mask_T: Tensor, segments: Segments, *, gamma: Fraction = 1.0
) -> TokenAdvantage:
    """Every token gets the return of its whole sequence: the basic policy gradient, without causality."""
    steps = _Steps(loss_mask_T, segments)
    to_go_S = _discounted(steps, rewards_T, None, gamma)
    first_S = torch.cat([steps.segments.ids_T.new_ones(1, dtype=torch.bool), steps.segments.ids_T.diff() > 0])
    return steps.credit(
        steps.segments.broadcast(steps.segments.sum(torch.where(first_S[: to_go_S.numel()], to_go_S, 0)))
    )


@checked
def monte_carlo(
    rewards_T: Tensor,
    values_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    bootstrap_B: Tensor | None = None,
    *,
    gamma: Fraction = 1.0,
) -> TokenAdvantage:
    """Reward-to-go minus the critic's value: unbiased, high variance; equals GAE with lam = 1."""
    steps = _Steps(loss_mask_T, segments)
    returns_S = _discounted(steps, rewards_T, bootstrap_B, gamma)
    return steps.credit(returns_S - steps.take(values_T), returns_S)


@checked
def td(
    rewards_T: Tensor,
    values_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    bootstrap_B: Tensor | None = None,
    *,
    gamma: Fraction = 1.0,
) -> TokenAdvantage:
    """One-step temporal difference r + gamma V' - V (actor-critic); equals GAE with lam = 0."""
    steps = _Steps(loss_mask_T, segments)
    delta_S = _residuals(steps, rewards_T, values_T, bootstrap_B, gamma)
    return steps.credit(delta_S, delta_S + steps.take(values_T))


@checked
def n_step(
    rewards_T: Tensor,
    values_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    bootstrap_B: Tensor | None = None,
    *,
    n: Count,
    gamma: Fraction = 1.0,
) -> TokenAdvantage:
    """n rewards, then the critic: the sum of n discounted TD residuals; n beyond the end is Monte Carlo."""
    steps = _Steps(loss_mask_T, segments)
    delta_S = _residuals(steps, rewards_T, values_T, bootstrap_B, gamma)
    # The sum of residuals t..t+n-1 is everything from t on minus gamma^n times everything from t+n on.
    ahead_S = reverse_scan(delta_S, gamma, steps.segments)
    later_S, ids_S = torch.zeros_like(ahead_S), steps.segments.ids_T
    if n < ahead_S.numel():
        later_S[:-n] = torch.where(ids_S[n:] == ids_S[:-n], ahead_S[n:], 0)
    advantages_S = ahead_S - gamma**n * later_S
    return steps.credit(advantages_S, advantages_S + steps.take(values_T))


@checked
def gae(
    rewards_T: Tensor,
    values_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    bootstrap_B: Tensor | None = None,
    *,
    gamma: Fraction = 1.0,
    lam: Fraction = 0.95,
) -> TokenAdvantage:
    """Generalized advantage estimation: TD residuals summed with weights (gamma lam)^k; targets are A + V.

    Schulman et al., 2015 (arXiv 1506.02438).
    """
    steps = _Steps(loss_mask_T, segments)
    delta_S = _residuals(steps, rewards_T, values_T, bootstrap_B, gamma)
    advantages_S = reverse_scan(delta_S, gamma * lam, steps.segments)
    return steps.credit(advantages_S, advantages_S + steps.take(values_T))


@checked
def decoupled_gae(
    rewards_T: Tensor,
    values_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    bootstrap_B: Tensor | None = None,
    *,
    gamma: Fraction = 1.0,
    policy_lam: Fraction = 0.95,
    critic_lam: Fraction = 1.0,
) -> TokenAdvantage:
    """GAE with one lam for the policy's advantages and another for the critic's targets (VC-PPO, VAPO)."""
    policy = gae(rewards_T, values_T, loss_mask_T, segments, bootstrap_B, gamma=gamma, lam=policy_lam)
    critic = gae(rewards_T, values_T, loss_mask_T, segments, bootstrap_B, gamma=gamma, lam=critic_lam)
    return TokenAdvantage(policy.advantages_T, critic.returns_T, {})


@checked
def length_adaptive_gae(
    rewards_T: Tensor,
    values_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    bootstrap_B: Tensor | None = None,
    *,
    gamma: Fraction = 1.0,
    alpha: Positive = 0.05,
    critic_lam: Fraction = 1.0,
) -> TokenAdvantage:
    """Decoupled GAE whose policy lam grows with length n: 1 - 1 / (alpha n), kept in [0, 1] (VAPO).

    At alpha .05 a sequence of 20 tokens or fewer has lam 0, one of 200 tokens .9, one of 2000 tokens .99.
    """
    steps = _Steps(loss_mask_T, segments)
    lengths_B = segments.sum(loss_mask_T).clamp(min=1).to(values_T.dtype)
    lam_B = (1 - 1 / (alpha * lengths_B)).clamp(0, 1)
    delta_S = _residuals(steps, rewards_T, values_T, bootstrap_B, gamma)
    advantages_S = reverse_scan(delta_S, gamma * steps.segments.broadcast(lam_B), steps.segments)
    critic = gae(rewards_T, values_T, loss_mask_T, segments, bootstrap_B, gamma=gamma, lam=critic_lam)
    return TokenAdvantage(steps.credit(advantages_S).advantages_T, critic.returns_T, {})


class _Steps:
    """The policy's own tokens with the holes closed up (axis S), and the way back to the flat axis."""

    def __init__(self, loss_mask_T: Tensor, segments: Segments) -> None:
        segments.check(loss_mask_T)
        self.loss_mask_T = loss_mask_T
        self.whole = bool(loss_mask_T.all())
        self.places_S = loss_mask_T.new_zeros(0, dtype=torch.int64) if self.whole else loss_mask_T.nonzero().squeeze(1)
        self.segments = segments if self.whole else segments.select(loss_mask_T)

    def take(self, x_T: Tensor) -> Tensor:
        if x_T.shape != self.loss_mask_T.shape:
            raise ValueError(
                f"{tuple(x_T.shape)} values for {tuple(self.loss_mask_T.shape)} tokens; mismatched lengths"
            )
        return x_T.detach() if self.whole else x_T.detach()[self.places_S]

    def put(self, x_S: Tensor) -> Tensor:
        if self.whole:
            return x_S
        return x_S.new_zeros(self.loss_mask_T.shape).index_copy(0, self.places_S, x_S)

    def credit(self, advantages_S: Tensor, returns_S: Tensor | None = None) -> TokenAdvantage:
        return TokenAdvantage(self.put(advantages_S), None if returns_S is None else self.put(returns_S), {})


def _residuals(steps: _Steps, rewards_T: Tensor, values_T: Tensor, bootstrap_B: Tensor | None, gamma: float) -> Tensor:
    values_S = steps.take(values_T)
    return steps.take(rewards_T) + gamma * next_in_segment(values_S, steps.segments, bootstrap_B) - values_S


def _discounted(steps: _Steps, rewards_T: Tensor, bootstrap_B: Tensor | None, gamma: float) -> Tensor:
    rewards_S = steps.take(rewards_T)
    if bootstrap_B is not None:
        beyond_S = next_in_segment(torch.zeros_like(rewards_S), steps.segments, bootstrap_B)
        rewards_S = rewards_S + gamma * beyond_S
    return reverse_scan(rewards_S, gamma, steps.segments)
