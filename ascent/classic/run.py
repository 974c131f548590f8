"""What the three policy-gradient methods share: the parts of a run, the critic's pass over a rollout, and its report.

Axes: T flat steps, B pieces of episodes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from ascent.classic.collect import Environments, ObservationScale, Rollout
from ascent.classic.policies import CategoricalPolicy, Critic, GaussianPolicy, build_policy
from ascent.classic.result import Result


@dataclass
class Run:
    """Environments, policy, critic and generators, all derived from one seed."""

    environments: Environments
    policy: CategoricalPolicy | GaussianPolicy
    critic: Critic
    scale: ObservationScale | None
    rng: np.random.Generator
    shuffler: torch.Generator
    history: list[dict[str, float]] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def result(self) -> Result:
        done = self.environments
        return Result(self.policy, done.returns, done.steps, self.history, time.perf_counter() - self.started)


def start(
    env_id: str, *, envs: int, seed: int, hidden: Sequence[int], scale: bool, gamma: float, log_std: float = 0.0
) -> Run:
    """The parts of a run. `scale` turns on the running scaling of observations and rewards."""
    if seed < 0:
        raise ValueError(f"seed={seed}, but it must be at least 0")
    started = time.perf_counter()
    environments = Environments(env_id, envs, seed * 1000, gamma=gamma if scale else None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = build_policy(environments.observation_space, environments.action_space, hidden=hidden, log_std=log_std)
        critic = Critic(policy.encoder.size, hidden=hidden)
    learned = ObservationScale(policy.encoder) if scale and not policy.encoder.discrete else None
    rng, shuffler = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    return Run(environments, policy, critic, learned, rng, shuffler, started=started)


@torch.inference_mode()
def judge(critic: nn.Module, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """values_T, and bootstrap_B: the value of the state after each piece, 0 where the task was over. One pass."""
    values = critic(torch.cat([rollout.observations_TO, rollout.last_observations_BO]))
    values_T, beyond_B = values.split([rollout.segments.total, rollout.segments.count])
    return values_T, torch.where(rollout.terminated_B, 0, beyond_B)


def explained_variance(values_T: Tensor, returns_T: Tensor) -> float:
    """1 - Var(target - V) / Var(target): 1 is perfect, 0 no better than a constant, NaN where targets are all equal."""
    spread = float(returns_T.var(correction=0))
    return 1 - float((returns_T - values_T).var(correction=0)) / spread if spread > 1e-12 else float("nan")


def recent_return(environments: Environments, episodes: int = 100) -> float:
    """Mean return of the last finished training episodes; NaN before the first."""
    recent = environments.returns[-episodes:]
    return sum(recent) / len(recent) if recent else float("nan")
