"""Proximal policy optimization (arXiv 1707.06347): several epochs of clipped or penalized updates on one rollout.

Axes: T flat steps, B pieces of episodes. Three objectives share everything but one line:
  clip        policy_losses.clip: no gain from a ratio outside 1 +- clip
  unclipped   policy_losses.surrogate: the ratio times the advantage, unbounded
  penalty     policy_losses.surrogate, plus beta times the exact KL(old || new); beta follows kl_controllers.ppo_penalty

Early stopping uses the k3 estimate of KL(old || new), ratio - 1 - log ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ascent.classic import batch as batches
from ascent.classic import checks
from ascent.classic.batch import Batch
from ascent.classic.descent import FlatAdam
from ascent.classic.policies import StochasticPolicy
from ascent.classic.result import Result
from ascent.classic.run import Run, start
from ascent.losses import entropy, kl, kl_controllers, policy_losses, values
from ascent.maths import masked

OBJECTIVES: Mapping[str, Callable[..., policy_losses.PolicyLoss]] = {
    "clip": policy_losses.clip,
    "unclipped": policy_losses.surrogate,
    "penalty": policy_losses.surrogate,
}


@dataclass(frozen=True)
class Settings(batches.Settings):
    epochs: int = 10
    minibatch: int = 256
    objective: str = "clip"
    clip: float = 0.2
    beta: float = 1.0
    """First coefficient of the penalty."""
    kl_target: float = 0.01
    """Target KL per update of the penalty coefficient."""
    stop_kl: float = 0.0
    """End an update after the epoch whose KL exceeds 1.5 times this; 0 never does."""
    lr: float = 3e-4
    anneal: bool = False
    """Let the learning rate fall linearly to 0."""
    value_weight: float = 0.5
    entropy_weight: float = 0.0
    grad_norm: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check(
            self,
            counts=("epochs", "minibatch"),
            positive=("beta", "kl_target", "lr", "grad_norm"),
            non_negative=("clip", "stop_kl", "value_weight", "entropy_weight"),
        )
        checks.choose(self, "objective", OBJECTIVES)


def train(env_id: str, settings: Settings, *, seed: int) -> Result:
    """PPO on a Gymnasium environment."""
    run = start(env_id, settings, seed=seed, scale=settings.scale)
    parameters = [*run.policy.parameters(), *run.critic.parameters()]
    optimizer = FlatAdam(parameters, lr=settings.lr, eps=1e-5, norm=settings.grad_norm)
    beta = settings.beta
    while run.environments.taken < settings.steps:
        if settings.anneal:
            optimizer.set_lr(settings.lr * (1 - run.environments.taken / settings.steps))
        batch, metrics = batches.collect_batch(run, settings)
        epochs = improve(run, batch, optimizer, settings, beta)
        metrics |= measure(run.policy, batch, clip=settings.clip)
        run.log(metrics | {"epochs": float(epochs), "beta": beta})
        if settings.objective == "penalty":
            beta = kl_controllers.ppo_penalty(
                beta, metrics["kl"], target_per_token=settings.kl_target
            )
    return run.result()


def improve(run: Run, batch: Batch, optimizer: FlatAdam, settings: Settings, beta: float) -> int:
    """Minibatch epochs on one batch; returns the number of epochs."""
    for epoch in range(settings.epochs):
        for piece in batch.minibatches(settings.minibatch, run.shuffler):
            optimizer.descend(loss(run.policy, run.critic, piece, settings, beta))
        if settings.stop_kl and sampled_kl(run.policy, batch) > 1.5 * settings.stop_kl:
            return epoch + 1
    return settings.epochs


def loss(
    policy: StochasticPolicy, critic: nn.Module, batch: Batch, settings: Settings, beta: float
) -> Tensor:
    """Policy, value, entropy and KL terms of one minibatch, each a mean over its steps."""
    outputs_TP = policy(batch.observations_TO)
    log_ratio_T = batch.log_ratio(policy, outputs_TP)
    value_T = values.mse(critic(batch.observations_TO), batch.returns_T, batch.loss_mask_T)
    total_T = policy_loss(log_ratio_T, batch, objective=settings.objective, clip=settings.clip)
    total_T = total_T + settings.value_weight * value_T
    if settings.entropy_weight:
        total_T = total_T + settings.entropy_weight * entropy.bonus(
            policy.entropy(outputs_TP), batch.loss_mask_T
        )
    if settings.objective == "penalty":
        total_T = total_T + beta * policy.kl(batch.old_outputs_TP, outputs_TP)
    return masked.mean(total_T, batch.loss_mask_T)


def policy_loss(log_ratio_T: Tensor, batch: Batch, *, objective: str, clip: float) -> Tensor:
    """The loss of each step under the chosen objective."""
    numbers = {"low": clip, "high": clip} if objective == "clip" else {}
    return OBJECTIVES[objective](
        log_ratio_T, batch.advantages_T, batch.loss_mask_T, **numbers
    ).loss_T


@torch.inference_mode()
def sampled_kl(policy: StochasticPolicy, batch: Batch) -> float:
    """KL(old || new) over the whole batch from the sampled actions alone."""
    logprobs_T = policy.logprobs(policy(batch.observations_TO), batch.actions)
    return float(
        masked.mean(
            kl.to_old(logprobs_T, batch.old_logprobs_T, batch.loss_mask_T), batch.loss_mask_T
        )
    )


@torch.inference_mode()
def measure(policy: StochasticPolicy, batch: Batch, *, clip: float) -> dict[str, float]:
    """Metrics of an update: exact KL, entropy, largest ratio, clip fractions."""
    outputs_TP = policy(batch.observations_TO)
    log_ratio_T = batch.log_ratio(policy, outputs_TP)
    masks = policy_losses.clip(
        log_ratio_T, batch.advantages_T, batch.loss_mask_T, low=clip, high=clip
    ).clip_masks
    return {
        "kl": float(policy.kl(batch.old_outputs_TP, outputs_TP).mean()),
        "entropy": float(policy.entropy(outputs_TP).mean()),
        "ratio_largest": float(log_ratio_T.max().exp()),
        "clipped_high": float(masks["policy/clip_frac_high"].float().mean()),
        "clipped_low": float(masks["policy/clip_frac_low"].float().mean()),
    }
