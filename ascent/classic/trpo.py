"""Trust region policy optimisation (arXiv 1502.05477): the largest improvement within a KL of delta.

Axes: T flat steps, K flat policy parameters. Maximise L = mean(ratio * advantage) subject to the mean over states of
the exact KL(old || new) <= delta. One step per rollout:
  1. g = grad L at the old policy
  2. solve F x = g by conjugate gradients, F = the Hessian of the mean KL at the old policy (the Fisher matrix), seen
     only through products F v (two backward passes), plus `damping` times the identity
  3. scale x to the length sqrt(2 delta / x'Fx) at which the quadratic model of the KL reaches delta
  4. walk back along it until the true KL is within delta AND L did not get worse; otherwise stay where we were

The penalty form instead climbs L - beta KL with a fixed beta by plain gradient steps: the same idea without a
constraint, shown because no single beta suits a whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ascent.advantages import returns
from ascent.classic import checks
from ascent.classic.collect import Rollout, collect_steps
from ascent.classic.descent import FlatAdam
from ascent.classic.policies import StochasticPolicy
from ascent.classic.result import Result
from ascent.classic.run import Run, explained_variance, judge, recent_return, start
from ascent.losses import gates, ratios, values
from ascent.maths import masked


@dataclass(frozen=True)
class Settings:
    steps: int = 100_000
    envs: int = 2
    length: int = 1024
    """Steps of each environment per rollout."""
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
    gamma: float = 0.99
    lam: float = 0.95
    critic_lr: float = 1e-3
    critic_epochs: int = 10
    critic_minibatch: int = 128
    hidden: Sequence[int] = (64, 64)
    log_std: float = 0.0
    scale: bool = False
    """Scale observations and rewards by their running moments."""

    def __post_init__(self) -> None:
        checks.check(
            self,
            counts=("steps", "envs", "length", "cg_steps", "backtracks", "penalty_steps", "critic_epochs"),
            positive=("delta", "shrink", "beta", "penalty_lr", "critic_lr"),
            non_negative=("damping",),
            fractions=("gamma", "lam", "shrink"),
        )
        checks.check(self, counts=("critic_minibatch",))
        checks.choose(self, "form", FORMS)
        checks.widths(self)


@dataclass(frozen=True)
class Problem:
    """The old policy's view of one rollout: what the surrogate and the KL are measured against."""

    policy: StochasticPolicy
    observations_TO: Tensor
    actions: Tensor
    advantages_T: Tensor
    old_T: Tensor
    old_outputs_TP: Tensor
    trained_T: Tensor

    def surrogate(self, outputs_TP: Tensor) -> Tensor:
        """L: the mean of ratio * advantage, to be maximised."""
        log_ratio_T = ratios.token(self.policy.logprobs(outputs_TP, self.actions), self.old_T, self.trained_T)
        return -masked.mean(gates.surrogate(log_ratio_T, self.advantages_T, self.trained_T).loss_T, self.trained_T)

    def kl(self, outputs_TP: Tensor) -> Tensor:
        """Mean exact KL(old || new) over the states of the rollout."""
        return masked.mean(self.policy.kl(self.old_outputs_TP, outputs_TP), self.trained_T)


def train(env_id: str, settings: Settings, *, seed: int) -> Result:
    """TRPO on a Gymnasium environment."""
    run = start(
        env_id,
        envs=settings.envs,
        seed=seed,
        hidden=settings.hidden,
        scale=settings.scale,
        gamma=settings.gamma,
        log_std=settings.log_std,
    )
    critic_optimizer = FlatAdam(run.critic.parameters(), lr=settings.critic_lr)
    improve = FORMS[settings.form]
    while run.environments.taken < settings.steps:
        rollout = collect_steps(run.policy, run.environments, settings.length, run.rng, run.scale)
        problem, targets_T, metrics = pose(run.policy, run.critic, rollout, settings)
        metrics |= improve(problem, settings)
        fit_critic(run, rollout.observations_TO, targets_T, critic_optimizer, settings)
        metrics |= {"return": recent_return(run.environments), "steps": float(run.environments.taken)}
        run.history.append(metrics)
    return run.result()


def pose(
    policy: StochasticPolicy, critic: nn.Module, rollout: Rollout, settings: Settings
) -> tuple[Problem, Tensor, dict[str, float]]:
    """The rollout's problem, the critic's targets, and how good the critic was."""
    trained_T = rollout.trained_T
    with torch.no_grad():
        values_T, bootstrap_B = judge(critic, rollout)
        credit = returns.gae(
            rollout.rewards_T,
            values_T,
            trained_T,
            rollout.segments,
            bootstrap_B,
            gamma=settings.gamma,
            lam=settings.lam,
        )
        assert credit.returns_T is not None
        outputs_TP = policy(rollout.observations_TO)
        old_T = policy.logprobs(outputs_TP, rollout.actions)
    white_T = masked.whiten(credit.advantages_T, trained_T)
    problem = Problem(policy, rollout.observations_TO, rollout.actions, white_T, old_T, outputs_TP, trained_T)
    return problem, credit.returns_T, {"explained_variance": explained_variance(values_T, credit.returns_T)}


def constrained_step(problem: Problem, settings: Settings) -> dict[str, float]:
    """One natural-gradient step with a line search; leaves the policy unchanged if no step is acceptable."""
    parameters = list(problem.policy.parameters())
    outputs_TP = problem.policy(problem.observations_TO)
    before = problem.surrogate(outputs_TP)
    slope_K = flat(torch.autograd.grad(before, parameters, retain_graph=True))
    stayed = {"accepted": 0.0, "kl": 0.0, "improvement": 0.0, "backtracks": 0.0, "predicted": 0.0}
    if float(slope_K.norm()) < 1e-12:
        return stayed
    fisher = fisher_product(problem.kl(outputs_TP), parameters, damping=settings.damping)
    direction_K = conjugate_gradient(fisher, slope_K, steps=settings.cg_steps)
    curvature = float(direction_K @ fisher(direction_K))
    if not curvature > 0:
        return stayed
    full_K = direction_K * (2 * settings.delta / curvature) ** 0.5
    return stayed | line_search(problem, full_K, float(before.detach()), float(slope_K @ full_K), settings)


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
        outputs_TP = problem.policy(problem.observations_TO)
        kl, gain = float(problem.kl(outputs_TP)), float(problem.surrogate(outputs_TP)) - before
        if kl <= settings.delta and gain >= 0:
            metrics = {"accepted": 1.0, "kl": kl, "improvement": gain, "predicted": scale * predicted}
            return metrics | {"backtracks": float(tried)}
    nn.utils.vector_to_parameters(origin_K, parameters)
    return {"backtracks": float(settings.backtracks)}


def penalised_steps(problem: Problem, settings: Settings) -> dict[str, float]:
    """Plain gradient steps on L - beta KL, with a fresh Adam for each rollout."""
    optimizer = torch.optim.Adam(problem.policy.parameters(), lr=settings.penalty_lr, fused=True)
    with torch.no_grad():
        before = float(problem.surrogate(problem.policy(problem.observations_TO)))
    for _ in range(settings.penalty_steps):
        outputs_TP = problem.policy(problem.observations_TO)
        optimizer.zero_grad(set_to_none=True)
        (settings.beta * problem.kl(outputs_TP) - problem.surrogate(outputs_TP)).backward()
        optimizer.step()
    with torch.no_grad():
        outputs_TP = problem.policy(problem.observations_TO)
        return {"kl": float(problem.kl(outputs_TP)), "improvement": float(problem.surrogate(outputs_TP)) - before}


FORMS: dict[str, Callable[[Problem, Settings], dict[str, float]]] = {
    "constraint": constrained_step,
    "penalty": penalised_steps,
}


def fisher_product(kl: Tensor, parameters: Sequence[Tensor], *, damping: float) -> Callable[[Tensor], Tensor]:
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
        if not curvature > 0:  # rounding has made A look indefinite: what we have is the best there is
            break
        length = squared / curvature
        x_K = x_K + length * direction_K
        residual_K = residual_K - length * image_K
        following = residual_K @ residual_K
        direction_K = residual_K + following / squared * direction_K
        squared = following
    return x_K


def fit_critic(run: Run, observations_TO: Tensor, targets_T: Tensor, optimizer: FlatAdam, settings: Settings) -> None:
    """Regress the critic on its targets, in minibatches."""
    trained_T = torch.ones(len(targets_T), dtype=torch.bool)
    for _ in range(settings.critic_epochs):
        order = torch.randperm(len(targets_T), generator=run.shuffler)
        size = settings.critic_minibatch
        pieces = (x[order].split(size) for x in (observations_TO, targets_T, trained_T))
        for some_TO, target_T, keep_T in zip(*pieces, strict=True):
            optimizer.descend(masked.mean(values.mse(run.critic(some_TO), target_T, keep_T), keep_T))


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.reshape(-1) for x in tensors])
