"""One rollout made ready for an update: what TRPO and PPO share between acting and improving.

Axes: T flat steps, O observation entries, P outputs of the policy's head. Everything here is frozen before the first
step: advantages by GAE, whitened once over the whole rollout; the critic's targets, from the unwhitened ones; and the
old policy's outputs, read in one pass, so that the first ratio of every update is 1.
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
    """A rollout with everything frozen that the update compares against."""

    observations_TO: Tensor
    actions: Tensor
    advantages_T: Tensor
    returns_T: Tensor
    old_logprobs_T: Tensor
    old_outputs_TP: Tensor
    loss_mask_T: Tensor

    def minibatches(self, size: int, shuffler: torch.Generator) -> Iterator[Batch]:
        """One epoch: every step once, in a new order. The order is applied once, so a minibatch is a set of views."""
        order = torch.randperm(len(self.old_logprobs_T), generator=shuffler)
        for pieces in zip(*(x[order].split(size) for x in self), strict=True):
            yield Batch(*pieces)


def gather(some: run.Run, settings: Settings) -> tuple[Batch, dict[str, float]]:
    """Act for one rollout and prepare it."""
    rollout = collect_steps(some.policy, some.environments, settings.length, some.rng, some.scale)
    return prepare(some.policy, some.critic, rollout, gamma=settings.gamma, lam=settings.lam)


def prepare(
    policy: StochasticPolicy, critic: nn.Module, rollout: Rollout, *, gamma: float, lam: float
) -> tuple[Batch, dict[str, float]]:
    """The rollout's batch, and how good the critic was before it sees the targets."""
    loss_mask_T = rollout.loss_mask_T
    with torch.no_grad():
        values_T, bootstrap_B = run.judge(critic, rollout)
        credit = returns.gae(
            rollout.rewards_T, values_T, loss_mask_T, rollout.segments, bootstrap_B, gamma=gamma, lam=lam
        )
        assert credit.returns_T is not None
        outputs_TP = policy(rollout.observations_TO)
        old_logprobs_T = policy.logprobs(outputs_TP, rollout.actions)
    white_T = masked.whiten(credit.advantages_T, loss_mask_T)
    batch = Batch(
        rollout.observations_TO, rollout.actions, white_T, credit.returns_T, old_logprobs_T, outputs_TP, loss_mask_T
    )
    return batch, {"explained_variance": run.explained_variance(values_T, credit.returns_T)}
