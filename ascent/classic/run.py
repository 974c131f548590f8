"""What the policy-gradient methods share: settings, the parts of a run, the critic.

Axes: T flat steps, B pieces of episodes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from ascent.classic import checks
from ascent.classic.collect import Environments, ObservationScale, Rollout
from ascent.classic.policies import BoxPolicy, CategoricalPolicy, Critic, build_policy
from ascent.classic.result import Result
from ascent.losses import values as losses
from ascent.maths import masked
from ascent.maths.blas import use_blas


@dataclass(frozen=True)
class Settings:
    """Settings of every method that trains a policy and a critic."""

    steps: int = 100_000
    """Environment steps in all; the last rollout may go beyond."""
    envs: int = 8
    gamma: float = 0.99
    lam: float = 0.95
    hidden: Sequence[int] = (64, 64)
    log_std: float = 0.0
    """First log standard deviation of a Gaussian policy."""
    hold: int = 0
    """Steps for which a Gaussian policy keeps state-dependent noise (gSDE); 0 draws plain noise at every step."""

    def __post_init__(self) -> None:
        checks.check(self, counts=("steps", "envs"), wholes=("hold",), fractions=("gamma", "lam"))
        checks.widths(self)


@dataclass
class Run:
    """Environments, policy, critic and generators, all derived from one seed."""

    environments: Environments
    policy: CategoricalPolicy | BoxPolicy
    critic: Critic
    scale: ObservationScale | None
    rng: np.random.Generator
    shuffler: torch.Generator
    history: list[dict[str, float]] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def log(self, metrics: dict[str, float]) -> None:
        """Append metrics to the history, with the recent return and the steps so far."""
        done = self.environments
        self.history.append(metrics | {"return": recent_return(done), "steps": float(done.taken)})

    def result(self) -> Result:
        done = self.environments
        return Result(
            self.policy, done.returns, done.steps, self.history, time.perf_counter() - self.started
        )


def start(env_id: str, settings: Settings, *, seed: int, scale: bool = False) -> Run:
    """The parts of a run. `scale` turns on the running scaling of observations and rewards."""
    if seed < 0:
        raise ValueError(f"seed={seed}, but it must be at least 0")
    use_blas()
    started = time.perf_counter()
    environments = Environments(
        env_id, settings.envs, seed * 1000, gamma=settings.gamma if scale else None
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = build_policy(
            environments.observation_space,
            environments.action_space,
            hidden=settings.hidden,
            log_std=settings.log_std,
            hold=settings.hold,
        )
        critic = Critic(policy.encoder.size, hidden=settings.hidden)
    learned = ObservationScale(policy.encoder) if scale and not policy.encoder.discrete else None
    rng, shuffler = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    return Run(environments, policy, critic, learned, rng, shuffler, started=started)


@torch.inference_mode()
def critic_values(critic: nn.Module, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """values_T, and bootstrap_B: the value of the state after each piece, 0 after termination."""
    values = critic(torch.cat([rollout.observations_TO, rollout.last_observations_BO]))
    values_T, after_B = values.split([rollout.segments.total, rollout.segments.count])
    return values_T, torch.where(rollout.terminated_B, 0, after_B)


def regress(
    critic: nn.Module,
    rollout: Rollout,
    targets_T: Tensor,
    optimizer: torch.optim.Optimizer,
    *,
    steps: int,
) -> None:
    """Full-batch regression of the critic on its targets."""
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        error_T = losses.mse(critic(rollout.observations_TO), targets_T, rollout.loss_mask_T)
        masked.mean(error_T, rollout.loss_mask_T).backward()
        optimizer.step()


def explained_variance(values_T: Tensor, returns_T: Tensor) -> float:
    """1 - Var(target - V) / Var(target): 1 is perfect, 0 is a constant, NaN if all targets are equal."""
    spread = float(returns_T.var(correction=0))
    return (
        1 - float((returns_T - values_T).var(correction=0)) / spread
        if spread > 1e-12
        else float("nan")
    )


def recent_return(environments: Environments, episodes: int = 100) -> float:
    """Mean return of the last finished training episodes; NaN before the first."""
    recent = environments.returns[-episodes:]
    return sum(recent) / len(recent) if recent else float("nan")
