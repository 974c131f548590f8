"""Variance and bias of the six policy-gradient estimators at one fixed policy.

Every estimator sees the same batches of whole episodes, so the common noise cancels in the difference of two gradients,
and a bias is a significant mean difference from `vpg`. Gamma is 1 and a time limit counts as an end, so basic,
reward_to_go, baseline and vpg (its critic fitted before, on other episodes) have the same mean: the gradient of the
expected return.

Axes: M batches, K flat policy parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ascent.advantages import returns
from ascent.classic import checks
from ascent.classic import run as shared
from ascent.classic.collect import Rollout, collect_episodes
from ascent.classic.policies import Critic, StochasticPolicy
from ascent.classic.policy_gradient import WEIGHTS, CreditInputs, policy_loss

UNBIASED = ("basic", "reward_to_go", "baseline", "vpg")
REFERENCE = "vpg"
"""The unbiased estimator with the least variance."""


@dataclass(frozen=True)
class Settings:
    batches: int = 400
    """Independent batches: the number of gradients each estimator gives."""
    episodes: int = 8
    """Whole episodes per batch, the same for every estimator."""
    critic_episodes: int = 200
    """Episodes, not used again, on which the critic is fitted."""
    lams: Sequence[float] = (0.0, 0.5, 0.9, 0.97, 1.0)
    hidden: Sequence[int] = (16,)
    warm_up: float = 1.0
    """Scale of the policy's last layer; 1 gives a policy that has preferences, .01 one that is uniform."""

    def __post_init__(self) -> None:
        checks.check(self, counts=("batches", "episodes", "critic_episodes"), positive=("warm_up",))
        checks.widths(self)
        if self.batches < 2:
            raise ValueError(f"variance: batches={self.batches}, but a variance needs at least 2")
        if not all(0 <= lam <= 1 for lam in self.lams):
            raise ValueError(f"variance: lams={self.lams!r}; every lam lies between 0 and 1")


@dataclass(frozen=True)
class Estimate:
    """One estimator's gradients in numbers. `total_variance` is the trace of their covariance, for one batch."""

    total_variance: float
    mean_norm: float
    signal_to_noise: float
    """|mean| / sqrt(total variance): how visible the direction is in a single batch."""
    squared_bias: float
    """Estimate of |E g - E g_vpg|^2 with the noise's own contribution taken off; around 0 when unbiased."""
    largest_z: float
    """The largest |mean / standard error| of any parameter's difference from `vpg`."""
    inside: float
    """Share of parameters whose 95% interval for that difference holds 0."""


def study(env_id: str, settings: Settings, *, seed: int) -> dict[str, Estimate]:
    """Every estimator on the same batches at one fixed policy; GAE once for each lam (`gae lam=...`)."""
    gradients = sample_gradients(env_id, settings, seed=seed)
    reference_MK = gradients[REFERENCE]
    return {name: describe(gradient_MK, reference_MK) for name, gradient_MK in gradients.items()}


def bound_on_largest_z(parameters: int, level: float = 0.01) -> float:
    """What the largest of `parameters` standard normal |z| exceeds with probability at most `level` (Bonferroni)."""
    probability = 1 - level / (2 * parameters)
    return float(
        math.sqrt(2) * torch.erfinv(torch.tensor(2 * probability - 1, dtype=torch.float64))
    )


def sample_gradients(env_id: str, settings: Settings, *, seed: int) -> dict[str, Tensor]:
    """gradient_MK of each estimator, in float64, on common batches."""
    run = shared.start(
        env_id,
        shared.Settings(envs=settings.episodes, hidden=settings.hidden, gamma=1.0),
        seed=seed,
    )
    sharpen(run.policy, settings.warm_up)
    fit(
        run.critic,
        collect_episodes(run.policy, run.environments, settings.critic_episodes, run.rng),
    )
    rows: dict[str, list[Tensor]] = {}
    for _ in range(settings.batches):
        rollout = collect_episodes(run.policy, run.environments, settings.episodes, run.rng)
        for name, weights_T in all_weights(rollout, run.critic, settings.lams).items():
            rows.setdefault(name, []).append(gradient(run.policy, rollout, weights_T))
    return {name: torch.stack(some) for name, some in rows.items()}


def all_weights(rollout: Rollout, critic: Critic, lams: Sequence[float]) -> dict[str, Tensor]:
    """The six weights of one batch; no bootstrap, because here a time limit is an end like any other."""
    with torch.no_grad():
        values_T = critic(rollout.observations_TO)
    ended_B = torch.zeros(rollout.segments.count)
    inputs = CreditInputs(rollout, values_T, ended_B, gamma=1.0, lam=0.0)
    weights = {name: rule(inputs) for name, rule in WEIGHTS.items() if name != "gae"}
    for lam in lams:
        weights[f"gae lam={lam:g}"] = WEIGHTS["gae"](
            CreditInputs(rollout, values_T, ended_B, gamma=1.0, lam=lam)
        )
    return weights


def gradient(policy: StochasticPolicy, rollout: Rollout, weights_T: Tensor) -> Tensor:
    """The flat policy gradient (of the return, uphill) with these weights."""
    slopes = torch.autograd.grad(
        -policy_loss(policy, rollout, weights_T), list(policy.parameters())
    )
    return torch.cat([slope.reshape(-1) for slope in slopes]).double()


def describe(gradient_MK: Tensor, reference_MK: Tensor) -> Estimate:
    batches = gradient_MK.shape[0]
    mean_K, variance = gradient_MK.mean(0), float(gradient_MK.var(0).sum())
    off_MK = gradient_MK - reference_MK
    error_K = (off_MK.var(0) / batches).sqrt()
    off_K = off_MK.mean(0)
    z_K = torch.where(error_K > 0, off_K / error_K.clamp(min=1e-300), 0).abs()
    return Estimate(
        total_variance=variance,
        mean_norm=float(mean_K.norm()),
        signal_to_noise=float(mean_K.norm()) / math.sqrt(variance) if variance > 0 else math.inf,
        squared_bias=float((off_K**2).sum() - (error_K**2).sum()),
        largest_z=float(z_K.max()),
        inside=float((z_K <= 1.96).double().mean()),
    )


def sharpen(policy: StochasticPolicy, factor: float) -> None:
    """Give the last layer, which starts at a hundredth of the usual size, `factor` times the usual size."""
    last = policy.network[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight.mul_(factor / 0.01)


def fit(critic: Critic, rollout: Rollout, *, steps: int = 500, lr: float = 1e-2) -> None:
    """Regress the critic on the undiscounted rewards-to-go of other episodes."""
    targets_T = returns.reward_to_go(
        rollout.rewards_T, rollout.loss_mask_T, rollout.segments
    ).advantages_T
    optimizer = torch.optim.Adam(critic.parameters(), lr=lr, fused=True)
    shared.regress(critic, rollout, targets_T, optimizer, steps=steps)


def ratio_interval(
    a_MK: Tensor, b_MK: Tensor, *, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap 95% interval of total variance a / total variance b, resampling the common batches together."""
    rng = np.random.default_rng(seed)
    ratios = []
    # The trace of a covariance needs only sums: resample per-batch squared norms and means through index counts.
    for _ in range(resamples):
        counts = rng.multinomial(len(a_MK), np.full(len(a_MK), 1 / len(a_MK)))
        weights_M = torch.from_numpy(counts / len(a_MK))
        spread = [
            float(weights_M @ (x_MK**2).sum(1) - ((weights_M @ x_MK) ** 2).sum())
            for x_MK in (a_MK, b_MK)
        ]
        ratios.append(spread[0] / spread[1])
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)
