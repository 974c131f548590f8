"""Returns and critic-based advantages on packed tokens: Monte Carlo, TD, n-step, GAE and its two refinements.

Axes: T flat tokens, B sequences, S policy tokens (the trained ones, without the tokens between them). `values_T` at a
token is the critic's value of the state BEFORE that token was chosen. Every recursion runs over policy tokens only: an
observation token between two of them is stepped over, neither discounted nor decayed through, and a reward on it is not
read. The state after a sequence's last policy token has the value `bootstrap_B` of that sequence: 0 (the default) where
it ended, the critic's value where it was truncated and is to be bootstrapped.

Worked example, one sequence: r = [0, 0, 0, 1], V = [.2, .4, .1, .6], gamma 1.
  td            [.2, -.3, .5, .4]
  gae lam .95   [.7092, .536, .88, .4]
  monte carlo   [.8, .6, .9, .4]
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.advantages.advantage import TokenAdvantage
from ascent.cells import from_inputs
from ascent.maths.reverse_scan import next_in_segment, reverse_scan
from ascent.maths.segments import Segments
from ascent.parameter_ranges import Count, Fraction, Positive, checked


class PolicyTokens:
    """The rewards of the policy's own tokens (axis S), and the way back to the flat axis."""

    def __init__(
        self,
        rewards_T: Tensor,
        loss_mask_T: Tensor,
        segments: Segments,
        bootstrap_B: Tensor | None = None,
    ) -> None:
        segments.check(loss_mask_T)
        self.loss_mask_T, self.bootstrap_B = loss_mask_T, bootstrap_B
        self.whole = bool(loss_mask_T.all())
        self.index_S = (
            loss_mask_T.new_zeros(0, dtype=torch.int64)
            if self.whole
            else loss_mask_T.nonzero().squeeze(1)
        )
        self.segments = segments if self.whole else segments.select(loss_mask_T)
        self.rewards_S = self.select(rewards_T)

    def select(self, x_T: Tensor) -> Tensor:
        if x_T.shape != self.loss_mask_T.shape:
            raise ValueError(
                f"{tuple(x_T.shape)} values for {tuple(self.loss_mask_T.shape)} tokens; mismatched lengths"
            )
        return x_T.detach() if self.whole else x_T.detach()[self.index_S]

    def flat(self, x_S: Tensor) -> Tensor:
        if self.whole:
            return x_S
        return x_S.new_zeros(self.loss_mask_T.shape).index_copy(0, self.index_S, x_S)

    def returns(self, gamma: float) -> Tensor:
        """Discounted sums of this and all later rewards."""
        rewards_S = self.rewards_S
        if self.bootstrap_B is not None:
            rewards_S = rewards_S + gamma * next_in_segment(
                torch.zeros_like(rewards_S), self.segments, self.bootstrap_B
            )
        return reverse_scan(rewards_S, gamma, self.segments)

    def advantage(self, advantages_S: Tensor, returns_S: Tensor | None = None) -> TokenAdvantage:
        return TokenAdvantage(
            self.flat(advantages_S), None if returns_S is None else self.flat(returns_S), {}
        )


class ValuedTokens(PolicyTokens):
    """Policy tokens with the critic's values."""

    def __init__(
        self,
        rewards_T: Tensor,
        values_T: Tensor,
        loss_mask_T: Tensor,
        segments: Segments,
        bootstrap_B: Tensor | None = None,
    ) -> None:
        super().__init__(rewards_T, loss_mask_T, segments, bootstrap_B)
        self.values_S = self.select(values_T)

    def residuals(self, gamma: float) -> Tensor:
        """TD residuals r + gamma V' - V."""
        next_S = next_in_segment(self.values_S, self.segments, self.bootstrap_B)
        return self.rewards_S + gamma * next_S - self.values_S

    def gae(self, gamma: float, lam: float | Tensor) -> Tensor:
        return reverse_scan(self.residuals(gamma), gamma * lam, self.segments)


@checked
@from_inputs(PolicyTokens)
def reward_to_go(tokens: PolicyTokens, *, gamma: Fraction = 1.0) -> TokenAdvantage:
    """Discounted sum of this and all later rewards of the sequence: REINFORCE's weight, no baseline."""
    return tokens.advantage(tokens.returns(gamma))


@checked
def whole_return(
    rewards_T: Tensor, loss_mask_T: Tensor, segments: Segments, *, gamma: Fraction = 1.0
) -> TokenAdvantage:
    """Every token gets the return of its whole sequence: the basic policy gradient, without causality."""
    tokens = PolicyTokens(rewards_T, loss_mask_T, segments)
    returns_S, ids_S = tokens.returns(gamma), tokens.segments.ids_T
    first_S = torch.cat([ids_S.new_ones(1, dtype=torch.bool), ids_S.diff() > 0])[
        : returns_S.numel()
    ]
    whole_B = tokens.segments.sum(torch.where(first_S, returns_S, 0))
    return tokens.advantage(tokens.segments.broadcast(whole_B))


@checked
@from_inputs(ValuedTokens)
def monte_carlo(tokens: ValuedTokens, *, gamma: Fraction = 1.0) -> TokenAdvantage:
    """Reward-to-go minus the critic's value: unbiased, high variance; equals GAE with lam = 1."""
    returns_S = tokens.returns(gamma)
    return tokens.advantage(returns_S - tokens.values_S, returns_S)


@checked
@from_inputs(ValuedTokens)
def td(tokens: ValuedTokens, *, gamma: Fraction = 1.0) -> TokenAdvantage:
    """One-step temporal difference r + gamma V' - V (actor-critic); equals GAE with lam = 0."""
    residuals_S = tokens.residuals(gamma)
    return tokens.advantage(residuals_S, residuals_S + tokens.values_S)


@checked
@from_inputs(ValuedTokens)
def n_step(tokens: ValuedTokens, *, n: Count, gamma: Fraction = 1.0) -> TokenAdvantage:
    """n rewards, then the critic: the sum of n discounted TD residuals; n beyond the end is Monte Carlo."""
    # The sum of residuals t..t+n-1 is everything from t on minus gamma^n times everything from t+n on.
    ahead_S = reverse_scan(tokens.residuals(gamma), gamma, tokens.segments)
    later_S, ids_S = torch.zeros_like(ahead_S), tokens.segments.ids_T
    if n < ahead_S.numel():
        later_S[:-n] = torch.where(ids_S[n:] == ids_S[:-n], ahead_S[n:], 0)
    advantages_S = ahead_S - gamma**n * later_S
    return tokens.advantage(advantages_S, advantages_S + tokens.values_S)


@checked
@from_inputs(ValuedTokens)
def gae(tokens: ValuedTokens, *, gamma: Fraction = 1.0, lam: Fraction = 0.95) -> TokenAdvantage:
    """Generalized advantage estimation: TD residuals summed with weights (gamma lam)^k; targets are A + V.

    Schulman et al., 2015 (arXiv 1506.02438).
    """
    advantages_S = tokens.gae(gamma, lam)
    return tokens.advantage(advantages_S, advantages_S + tokens.values_S)


@checked
@from_inputs(ValuedTokens)
def decoupled_gae(
    tokens: ValuedTokens,
    *,
    gamma: Fraction = 1.0,
    policy_lam: Fraction = 0.95,
    critic_lam: Fraction = 1.0,
) -> TokenAdvantage:
    """GAE with one lam for the policy's advantages and another for the critic's targets (VC-PPO, VAPO)."""
    return tokens.advantage(
        tokens.gae(gamma, policy_lam), tokens.gae(gamma, critic_lam) + tokens.values_S
    )


@checked
@from_inputs(ValuedTokens)
def length_adaptive_gae(
    tokens: ValuedTokens,
    *,
    gamma: Fraction = 1.0,
    alpha: Positive = 0.05,
    critic_lam: Fraction = 1.0,
) -> TokenAdvantage:
    """Decoupled GAE whose policy lam grows with length n: 1 - 1 / (alpha n), kept in [0, 1] (VAPO).

    At alpha .05 a sequence of 20 tokens or fewer has lam 0, one of 200 tokens .9, one of 2000 tokens .99.
    """
    lengths_B = tokens.segments.lengths_B.clamp(min=1).to(tokens.values_S.dtype)
    lam_S = tokens.segments.broadcast((1 - 1 / (alpha * lengths_B)).clamp(0, 1))
    return tokens.advantage(
        tokens.gae(gamma, lam_S), tokens.gae(gamma, critic_lam) + tokens.values_S
    )
