"""The policy gradient: one estimator, mean over episodes of sum_t grad log pi(a_t | s_t) * weight_t, and six weights.

Axes: T flat steps, B episodes.
  basic         R, the return of the whole episode              unbiased, needs no critic
  reward_to_go  G_t, what came after the action                  unbiased, needs no critic
  baseline      G_t - b, b the others' mean reward-to-go         unbiased, needs no critic
  vpg           G_t - V(s_t), a sample of A(s_t, a_t)            unbiased (up to the bootstrap of a time limit)
  actor_critic  r_t + gamma V(s_t+1) - V(s_t)                    as biased as V is wrong
  gae           lam-weighted sum of those residuals              between the last two

Batches are a fixed number of whole episodes. The critic is fitted AFTER the policy step: fitted before, V would depend
on the actions, and the estimate would be biased. With gamma < 1 all but `basic` drop the factor gamma^t of the exact
discounted gradient, as is usual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ascent.advantages import returns
from ascent.classic import checks
from ascent.classic import run as shared
from ascent.classic.collect import Rollout, collect_episodes
from ascent.classic.policies import StochasticPolicy
from ascent.classic.result import Result
from ascent.classic.run import Run, critic_values, explained_variance, regress
from ascent.losses import aggregation, entropy, policy_losses
from ascent.maths import masked
from ascent.maths.segments import Segments


@dataclass(frozen=True)
class CreditInputs:
    """One batch of whole episodes with the critic's values."""

    rollout: Rollout
    values_T: Tensor
    bootstrap_B: Tensor
    gamma: float
    lam: float

    @property
    def rewards(self) -> tuple[Tensor, Tensor, Segments]:
        return self.rollout.rewards_T, self.rollout.loss_mask_T, self.rollout.segments

    @property
    def with_values(self) -> tuple[Tensor, Tensor, Tensor, Segments, Tensor]:
        rewards_T, loss_mask_T, segments = self.rewards
        return rewards_T, self.values_T, loss_mask_T, segments, self.bootstrap_B


def basic(inputs: CreditInputs) -> Tensor:
    """The return of the whole episode, past rewards included."""
    return returns.whole_return(*inputs.rewards, gamma=inputs.gamma).advantages_T


def reward_to_go(inputs: CreditInputs) -> Tensor:
    """The rewards after the action."""
    return returns.reward_to_go(*inputs.rewards, gamma=inputs.gamma).advantages_T


def baseline(inputs: CreditInputs) -> Tensor:
    """Reward-to-go minus its mean over all steps of the OTHER episodes, which this action does not influence."""
    to_go_T = reward_to_go(inputs)
    return to_go_T - others_mean(to_go_T, inputs.rollout.segments)


def vpg(inputs: CreditInputs) -> Tensor:
    """Reward-to-go minus the critic's value: a Monte Carlo sample of the advantage."""
    return returns.monte_carlo(*inputs.with_values, gamma=inputs.gamma).advantages_T


def actor_critic(inputs: CreditInputs) -> Tensor:
    """The one-step temporal difference of the critic."""
    return returns.td(*inputs.with_values, gamma=inputs.gamma).advantages_T


def gae(inputs: CreditInputs) -> Tensor:
    """Generalized advantage estimation: temporal differences summed with weights (gamma lam)^k."""
    return returns.gae(*inputs.with_values, gamma=inputs.gamma, lam=inputs.lam).advantages_T


WEIGHTS: dict[str, Callable[[CreditInputs], Tensor]] = {
    rule.__name__: rule for rule in (basic, reward_to_go, baseline, vpg, actor_critic, gae)
}
WITH_CRITIC = ("vpg", "actor_critic", "gae")


@dataclass(frozen=True)
class Settings(shared.Settings):
    weight: str = "vpg"
    episodes: int = 16
    """Whole episodes per update, a multiple of `envs`."""
    lam: float = 0.97
    lr: float = 3e-3
    entropy_weight: float = 0.0
    grad_norm: float = 1.0
    whiten: bool = False
    """Normalize the weights of a batch to mean 0 and variance 1; this adds a small bias."""
    critic_lr: float = 3e-3
    critic_steps: int = 40
    """Whole-batch regression steps of the critic per update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.choose(self, "weight", WEIGHTS)
        checks.check(
            self,
            counts=("episodes", "critic_steps"),
            positive=("lr", "critic_lr", "grad_norm"),
            non_negative=("entropy_weight",),
        )
        if self.episodes % self.envs:
            raise ValueError(
                f"policy_gradient: episodes={self.episodes} on envs={self.envs}; episodes must be a multiple of envs"
            )
        if self.weight == "baseline" and self.episodes < 2:
            raise ValueError(
                "policy_gradient: episodes=1 leaves no other episode for the baseline; use at least 2"
            )


def train(env_id: str, settings: Settings, *, seed: int) -> Result:
    """Policy gradient on a Gymnasium environment."""
    run = shared.start(env_id, settings, seed=seed)
    optimizer = torch.optim.Adam(run.policy.parameters(), lr=settings.lr, fused=True)
    critic_optimizer = torch.optim.Adam(run.critic.parameters(), lr=settings.critic_lr, fused=True)
    while run.environments.taken < settings.steps:
        rollout = collect_episodes(run.policy, run.environments, settings.episodes, run.rng)
        metrics = ascend(run, rollout, optimizer, settings)
        if settings.weight in WITH_CRITIC:
            metrics |= fit_critic(run.critic, rollout, critic_optimizer, settings)
        run.log(metrics)
    return run.result()


def ascend(
    run: Run, rollout: Rollout, optimizer: torch.optim.Optimizer, settings: Settings
) -> dict[str, float]:
    """One gradient step on one batch of episodes."""
    values_T, bootstrap_B = critic_values(run.critic, rollout)
    weights_T = WEIGHTS[settings.weight](
        CreditInputs(rollout, values_T, bootstrap_B, settings.gamma, settings.lam)
    )
    if settings.whiten:
        weights_T = masked.whiten(weights_T, rollout.loss_mask_T)
    outputs_TP = run.policy(rollout.observations_TO)
    entropy_T = run.policy.entropy(outputs_TP)
    optimizer.zero_grad(set_to_none=True)
    loss = policy_loss(run.policy, rollout, weights_T, outputs_TP)
    if settings.entropy_weight:
        loss = loss + settings.entropy_weight * masked.mean(
            entropy.bonus(entropy_T, rollout.loss_mask_T), rollout.loss_mask_T
        )
    loss.backward()
    norm = nn.utils.clip_grad_norm_(run.policy.parameters(), settings.grad_norm)
    optimizer.step()
    return {"grad_norm": float(norm), "entropy": float(entropy_T.detach().mean())}


def policy_loss(
    policy: StochasticPolicy, rollout: Rollout, weights_T: Tensor, outputs_TP: Tensor | None = None
) -> Tensor:
    """-mean over episodes of sum_t weight_t log pi(a_t | s_t); its gradient is minus the policy gradient."""
    outputs_TP = policy(rollout.observations_TO) if outputs_TP is None else outputs_TP
    logprobs_T = policy.logprobs(outputs_TP, rollout.actions)
    loss_T = policy_losses.plain(logprobs_T, weights_T, rollout.loss_mask_T).loss_T
    tokens_B = aggregation.tokens_per_sequence(rollout.loss_mask_T, rollout.segments, loss_T.dtype)
    weights = aggregation.sequence_mean_token_sum(tokens_B)
    total = aggregation.numerator(loss_T, rollout.loss_mask_T, weights.weight_B, rollout.segments)
    return total / weights.share_B.sum().clamp(min=1)


def fit_critic(
    critic: nn.Module, rollout: Rollout, optimizer: torch.optim.Optimizer, settings: Settings
) -> dict[str, float]:
    """Regress the critic on the discounted rewards-to-go, bootstrapped after a time limit."""
    values_T, bootstrap_B = critic_values(critic, rollout)
    targets_T = returns.reward_to_go(
        rollout.rewards_T, rollout.loss_mask_T, rollout.segments, bootstrap_B, gamma=settings.gamma
    ).advantages_T.clone()
    regress(critic, rollout, targets_T, optimizer, steps=settings.critic_steps)
    return {"explained_variance": explained_variance(values_T, targets_T)}


def others_mean(x_T: Tensor, segments: Segments) -> Tensor:
    """For each step, the mean of x over every step of all other episodes.

    Lengths (2, 1), x = [3, 1 | 5]: [5, 5 | 2].
    """
    sum_B, count_B = segments.sum(x_T), segments.lengths_B
    return segments.broadcast((sum_B.sum() - sum_B) / (count_B.sum() - count_B).clamp(min=1))
