"""Trust region policy optimization (arXiv 1502.05477): the largest improvement within a KL of delta.

Axes: T flat steps, K flat policy parameters. Maximize L = mean(ratio * advantage) subject to the mean over states of
the exact KL(old || new) <= delta. One step per rollout:
  1. g = grad L at the old policy
  2. solve F x = g by conjugate gradients, F = the Hessian of the mean KL at the old policy (the Fisher matrix), seen
     only through products F v (two backward passes), plus `damping` times the identity
  3. scale x to the length sqrt(2 delta / x'Fx) at which the quadratic model of the KL reaches delta
  4. backtrack along it until the true KL is within delta AND L is not worse; otherwise keep the old policy

The penalty form takes gradient steps on L - beta KL with a fixed beta. It is here for comparison: no single beta suits
a whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from ascent.losses import policy_losses, values
from ascent.maths import masked


@dataclass(frozen=True)
class Settings(batches.Settings):
    envs: int = 2
    length: int = 1024
    form: str = "constraint"
    """`constraint` (TRPO proper) or `penalty` (fixed beta)."""
    delta: float = 0.01
    damping: float = 0.1
    cg_steps: int = 15
    backtracks: int = 10
    shrink: float = 0.8
    """Factor of each step back in the line search."""
    beta: float = 10.0
    penalty_steps: int = 20
    penalty_lr: float = 3e-3
    critic_lr: float = 1e-3
    critic_epochs: int = 10
    critic_minibatch: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check(
            self,
            counts=("cg_steps", "backtracks", "penalty_steps", "critic_epochs", "critic_minibatch"),
            positive=("delta", "shrink", "beta", "penalty_lr", "critic_lr"),
            non_negative=("damping",),
            fractions=("shrink",),
        )
        checks.choose(self, "form", FORMS)


@dataclass(frozen=True)
class Problem:
    """Surrogate objective and KL on one rollout, relative to the old policy."""

    policy: StochasticPolicy
    batch: Batch

    def surrogate(self, outputs_TP: Tensor) -> Tensor:
        """L: the mean of ratio * advantage, to be maximized."""
        batch = self.batch
        log_ratio_T = batch.log_ratio(self.policy, outputs_TP)
        return -masked.mean(
            policy_losses.surrogate(log_ratio_T, batch.advantages_T, batch.loss_mask_T).loss_T,
            batch.loss_mask_T,
        )

    def kl(self, outputs_TP: Tensor) -> Tensor:
        """Mean exact KL(old || new) over the states of the rollout."""
        return masked.mean(
            self.policy.kl(self.batch.old_outputs_TP, outputs_TP), self.batch.loss_mask_T
        )


def train(env_id: str, settings: Settings, *, seed: int) -> Result:
    """TRPO on a Gymnasium environment."""
    run = start(env_id, settings, seed=seed, scale=settings.scale)
    critic_optimizer = FlatAdam(run.critic.parameters(), lr=settings.critic_lr)
    improve = FORMS[settings.form]
    while run.environments.taken < settings.steps:
        batch, metrics = batches.collect_batch(run, settings)
        metrics |= improve(Problem(run.policy, batch), settings)
        fit_critic(run, batch, critic_optimizer, settings)
        run.log(metrics)
    return run.result()


def constrained_step(problem: Problem, settings: Settings) -> dict[str, float]:
    """One natural-gradient step with a line search; leaves the policy unchanged if no step is acceptable."""
    parameters = list(problem.policy.parameters())
    outputs_TP = problem.policy(problem.batch.observations_TO)
    before = problem.surrogate(outputs_TP)
    slope_K = flat(torch.autograd.grad(before, parameters, retain_graph=True))
    unchanged = {
        "accepted": 0.0,
        "kl": 0.0,
        "improvement": 0.0,
        "backtracks": 0.0,
        "predicted": 0.0,
    }
    if float(slope_K.norm()) < 1e-12:
        return unchanged
    fisher = fisher_product(problem.kl(outputs_TP), parameters, damping=settings.damping)
    direction_K = conjugate_gradient(fisher, slope_K, steps=settings.cg_steps)
    curvature = float(direction_K @ fisher(direction_K))
    if not curvature > 0:
        return unchanged
    full_K = direction_K * (2 * settings.delta / curvature) ** 0.5
    return unchanged | line_search(
        problem, full_K, float(before.detach()), float(slope_K @ full_K), settings
    )


@torch.no_grad()
def line_search(
    problem: Problem, full_K: Tensor, before: float, predicted: float, settings: Settings
) -> dict[str, float]:
    """The first of full, shrink * full, shrink^2 * full, ... with KL <= delta and a surrogate that is not worse."""
    parameters = list(problem.policy.parameters())
    origin_K = nn.utils.parameters_to_vector(parameters)
    for tried in range(settings.backtracks):
        scale = settings.shrink**tried
        nn.utils.vector_to_parameters(origin_K + scale * full_K, parameters)
        outputs_TP = problem.policy(problem.batch.observations_TO)
        kl, gain = float(problem.kl(outputs_TP)), float(problem.surrogate(outputs_TP)) - before
        if kl <= settings.delta and gain >= 0:
            metrics = {
                "accepted": 1.0,
                "kl": kl,
                "improvement": gain,
                "predicted": scale * predicted,
            }
            return metrics | {"backtracks": float(tried)}
    nn.utils.vector_to_parameters(origin_K, parameters)
    return {"backtracks": float(settings.backtracks)}


def penalized_steps(problem: Problem, settings: Settings) -> dict[str, float]:
    """Plain gradient steps on L - beta KL, with a fresh Adam for each rollout."""
    optimizer = torch.optim.Adam(problem.policy.parameters(), lr=settings.penalty_lr, fused=True)
    with torch.no_grad():
        before = float(problem.surrogate(problem.policy(problem.batch.observations_TO)))
    for _ in range(settings.penalty_steps):
        outputs_TP = problem.policy(problem.batch.observations_TO)
        optimizer.zero_grad(set_to_none=True)
        (settings.beta * problem.kl(outputs_TP) - problem.surrogate(outputs_TP)).backward()
        optimizer.step()
    with torch.no_grad():
        outputs_TP = problem.policy(problem.batch.observations_TO)
        return {
            "kl": float(problem.kl(outputs_TP)),
            "improvement": float(problem.surrogate(outputs_TP)) - before,
        }


FORMS: dict[str, Callable[[Problem, Settings], dict[str, float]]] = {
    "constraint": constrained_step,
    "penalty": penalized_steps,
}


def fisher_product(
    kl: Tensor, parameters: Sequence[Tensor], *, damping: float
) -> Callable[[Tensor], Tensor]:
    """v -> F v + damping v, with F the Hessian of `kl` by double backward; `kl` must be taken at the old policy."""
    slope_K = flat(torch.autograd.grad(kl, parameters, create_graph=True))

    def product(v_K: Tensor) -> Tensor:
        curved = torch.autograd.grad(slope_K @ v_K.detach(), parameters, retain_graph=True)
        return flat(curved) + damping * v_K

    return product


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], target_K: Tensor, *, steps: int, tolerance: float = 1e-10
) -> Tensor:
    """Solve A x = target, A symmetric positive definite and known by its products; stops at |A x - target| < tolerance.

    In exact arithmetic it needs as many steps as A has different eigenvalues.
    """
    x_K, residual_K = torch.zeros_like(target_K), target_K.clone()
    direction_K, squared = residual_K.clone(), residual_K @ residual_K
    for _ in range(steps):
        if squared < tolerance**2:
            break
        image_K = product(direction_K)
        curvature = direction_K @ image_K
        if not curvature > 0:  # numerically indefinite
            break
        length = squared / curvature
        x_K = x_K + length * direction_K
        residual_K = residual_K - length * image_K
        following = residual_K @ residual_K
        direction_K = residual_K + following / squared * direction_K
        squared = following
    return x_K


def fit_critic(run: Run, batch: Batch, optimizer: FlatAdam, settings: Settings) -> None:
    """Regress the critic on its targets, in minibatches."""
    for _ in range(settings.critic_epochs):
        for piece in batch.minibatches(settings.critic_minibatch, run.shuffler):
            error_T = values.mse(
                run.critic(piece.observations_TO), piece.returns_T, piece.loss_mask_T
            )
            optimizer.descend(masked.mean(error_T, piece.loss_mask_T))


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.reshape(-1) for x in tensors])
