"""The training batch of one rollout, for TRPO and PPO.

Axes: T flat steps, O observation entries, P outputs of the policy's head. Fixed before the first
update: GAE advantages, whitened over the rollout; the critic's targets, from the raw advantages; and the outputs of the
old policy, computed in one pass, so that the first ratio of every update is 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ascent.advantages import returns
from ascent.classic import checks, run
from ascent.classic.collect import Rollout, collect_steps
from ascent.classic.policies import StochasticPolicy
from ascent.losses import ratios
from ascent.maths import masked


@dataclass(frozen=True)
class Settings(run.Settings):
    """Settings of the methods that update on a fixed number of steps."""

    length: int = 128
    """Steps of each environment per rollout."""
    scale: bool = False
    """Scale observations and rewards by their running moments."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check(self, counts=("length",))


class Batch(NamedTuple):
    """A rollout with advantages, targets and the outputs of the old policy."""

    observations_TO: Tensor
    actions: Tensor
    advantages_T: Tensor
    returns_T: Tensor
    old_logprobs_T: Tensor
    old_outputs_TP: Tensor
    loss_mask_T: Tensor

    def log_ratio(self, policy: StochasticPolicy, outputs_TP: Tensor) -> Tensor:
        """log pi_new - log pi_old of the actions, for the outputs of the new policy."""
        return ratios.token(
            policy.logprobs(outputs_TP, self.actions), self.old_logprobs_T, self.loss_mask_T
        )

    def minibatches(self, size: int, shuffler: torch.Generator) -> Iterator[Batch]:
        """One epoch in a new random order."""
        order = torch.randperm(len(self.old_logprobs_T), generator=shuffler)
        for pieces in zip(*(x[order].split(size) for x in self), strict=True):
            yield Batch(*pieces)


def collect_batch(some: run.Run, settings: Settings) -> tuple[Batch, dict[str, float]]:
    """Collect one rollout and prepare it."""
    rollout = collect_steps(some.policy, some.environments, settings.length, some.rng, some.scale)
    return prepare(some.policy, some.critic, rollout, gamma=settings.gamma, lam=settings.lam)


def prepare(
    policy: StochasticPolicy, critic: nn.Module, rollout: Rollout, *, gamma: float, lam: float
) -> tuple[Batch, dict[str, float]]:
    """The batch of a rollout, and the explained variance of the critic before its update."""
    loss_mask_T = rollout.loss_mask_T
    with torch.no_grad():
        values_T, bootstrap_B = run.critic_values(critic, rollout)
        credit = returns.gae(
            rollout.rewards_T,
            values_T,
            loss_mask_T,
            rollout.segments,
            bootstrap_B,
            gamma=gamma,
            lam=lam,
        )
        assert credit.returns_T is not None
        outputs_TP = policy(rollout.observations_TO)
        old_logprobs_T = policy.logprobs(outputs_TP, rollout.actions)
    white_T = masked.whiten(credit.advantages_T, loss_mask_T)
    batch = Batch(
        rollout.observations_TO,
        rollout.actions,
        white_T,
        credit.returns_T,
        old_logprobs_T,
        outputs_TP,
        loss_mask_T,
    )
    return batch, {"explained_variance": run.explained_variance(values_T, credit.returns_T)}
