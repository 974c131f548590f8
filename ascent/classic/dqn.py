"""DQN: Q-learning with a Q-network, a replay buffer and a target network.

    z = r + gamma (1 - d) max_a' Q_target(s', a')          loss = mean l(Q(s, a) - z), no gradient through z

d is 1 on termination only, not at a time limit. With `double` the online network chooses a' and the target network
evaluates it, which removes the overestimation of the maximum. The target network is copied every `target_every` updates
(`target_rate` 1) or follows by Polyak averaging. Mnih et al., 2015; van Hasselt et al., 2016 (arXiv 1509.06461).

The losses are those of a critic (`ascent.losses.values`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ascent.classic.checks import check, choose, widths
from ascent.classic.collect import Environments
from ascent.classic.environments import discrete_actions
from ascent.classic.policies import Encoder
from ascent.classic.q_learning import exploration
from ascent.classic.replay import Replay, Steps
from ascent.classic.result import Result
from ascent.losses import values


@dataclass(frozen=True)
class Settings:
    """Every number of a run. The defaults are those of the CartPole-v1 study in docs/foundations/03-dqn.md."""

    steps: int = 40_000
    """Environment steps in all, over all `envs`."""
    envs: int = 4
    hidden: tuple[int, ...] = (128, 128)
    scale: bool = True
    """Divide observations by their standard deviation over the warm-up; numbered states are left alone."""
    learning_rate: float = 2e-3
    final_rate: float = 0.0
    """The learning rate falls linearly to this share of its start: 1 keeps it constant."""
    batch: int = 64
    capacity: int = 50_000
    warmup: int = 1_000
    """Steps before the first update."""
    train_every: int = 4
    updates: int = 2
    """Gradient steps after every `train_every` environment steps."""
    gamma: float = 0.99
    loss: str = "mse"
    double: bool = True
    target_rate: float = 0.02
    """Rate of the target network: 1 is a hard copy, less is Polyak averaging."""
    target_every: int = 1
    """Gradient steps between updates of the target network."""
    epsilon_start: float = 1.0
    epsilon_end: float = 0.04
    epsilon_share: float = 0.2
    """The share of the run over which exploration falls, linearly."""

    def __post_init__(self) -> None:
        counts = (
            "steps",
            "envs",
            "batch",
            "capacity",
            "warmup",
            "train_every",
            "updates",
            "target_every",
        )
        shares = (
            "gamma",
            "final_rate",
            "target_rate",
            "epsilon_start",
            "epsilon_end",
            "epsilon_share",
        )
        check(self, counts=counts, positive=("learning_rate", "target_rate"), fractions=shares)
        choose(self, "loss", ("mse", "huber"))
        widths(self)
        if self.target_rate == 1 and self.target_every == 1:
            raise ValueError(
                "target_rate=1 with target_every=1 has no target network; use target_every >= 100"
            )
        if self.train_every < self.envs:
            raise ValueError(
                f"train_every={self.train_every} is less than the {self.envs} steps that envs={self.envs} take at "
                "once; use train_every >= envs, with more updates"
            )
        if self.steps <= self.warmup:
            raise ValueError(
                f"steps={self.steps} end before warmup={self.warmup} does; nothing would be learned"
            )


class QNetwork:
    """An MLP from observations to one value per action; its policy is greedy.

    All weights are views of one vector, `flat`, and all gradients of `flat.grad`, so an Adam step, a Polyak step and a
    copy are one operation each, and acting runs in numpy on the same memory.
    """

    def __init__(self, encoder: Encoder, hidden: Sequence[int], actions: int) -> None:
        self.encoder, self.hidden, self.actions = encoder, tuple(hidden), actions
        shapes = list(itertools.pairwise((encoder.size, *hidden, actions)))
        self.flat = torch.zeros(sum(i * o + o for i, o in shapes), requires_grad=True)
        self.flat.grad = torch.zeros_like(self.flat)
        self.layers: list[tuple[Tensor, Tensor]] = []
        at = 0
        for i, o in shapes:
            self.layers.append((self._view(at, i, o), self._view(at + i * o, o)))
            at += i * o + o
        with torch.no_grad():
            for weight, bias in self.layers:
                bound = weight.shape[0] ** -0.5
                weight.uniform_(-bound, bound)
                bias.uniform_(-bound, bound)
        self.scale_O = torch.ones(encoder.size)
        self.arrays = [
            (weight.detach().numpy(), bias.detach().numpy()) for weight, bias in self.layers
        ]

    def __call__(self, rows: Tensor) -> Tensor:
        rows = rows * self.scale_O
        for weight, bias in self.layers[:-1]:
            rows = torch.addmm(bias, rows, weight).relu()
        return torch.addmm(self.layers[-1][1], rows, self.layers[-1][0])

    def act(
        self, observations: np.ndarray[Any, Any], rng: np.random.Generator | None
    ) -> np.ndarray[Any, Any]:
        """The greedy action of each raw observation; `rng` is not used."""
        return self.best(self.encoder.raw(observations))

    def best(self, rows_NO: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The best action of each encoded row, in numpy."""
        rows_NO = rows_NO * self.scale_O.numpy()
        for weight, bias in self.arrays[:-1]:
            rows_NO = np.maximum(rows_NO @ weight + bias, 0)
        chosen: np.ndarray[Any, Any] = (rows_NO @ self.arrays[-1][0] + self.arrays[-1][1]).argmax(
            -1
        )
        return chosen

    def set_scale(self, rows_NO: np.ndarray[Any, Any]) -> None:
        """Divide inputs by the standard deviation of these rows, where it is not 0."""
        std_O = torch.from_numpy(rows_NO).std(0)
        self.scale_O = torch.where(std_O > 1e-6, 1 / std_O, 1.0)

    def zero_grad(self) -> None:
        """Zero the gradients in place: they are views of `flat.grad`."""
        assert self.flat.grad is not None
        self.flat.grad.zero_()

    def _view(self, at: int, *shape: int) -> Tensor:
        size = int(np.prod(shape))
        view = self.flat.detach()[at : at + size].view(shape).requires_grad_()
        assert self.flat.grad is not None
        view.grad = self.flat.grad[at : at + size].view(shape)
        return view


def train(env_id: str, settings: Settings, *, seed: int) -> Result:
    """Learn a greedy policy. `history` holds one row of metrics for every round of updates."""
    if seed < 0:
        raise ValueError(f"seed={seed}, but it must be at least 0")
    began, rng = time.perf_counter(), np.random.default_rng(seed)
    envs = Environments(env_id, settings.envs, seed * 1000)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        online = QNetwork(
            Encoder(envs.observation_space), settings.hidden, discrete_actions(envs.action_space)
        )
    learner, replay = Learner(online, settings), Replay(settings.capacity, online.encoder.size)
    here_NO = online.encoder.raw(np.stack(envs.now))
    history: list[dict[str, float]] = []
    while envs.taken < settings.steps:
        epsilon = exploration(
            envs.taken,
            settings.steps,
            settings.epsilon_start,
            settings.epsilon_end,
            settings.epsilon_share,
        )
        random_N = rng.random(settings.envs) < epsilon
        chosen_N = np.where(
            random_N, rng.integers(online.actions, size=settings.envs), online.best(here_NO)
        )
        ended_N = [envs.step(i, action) for i, action in enumerate(chosen_N.tolist())]
        after_NO = online.encoder.raw(np.stack(envs.now))
        for i, (reward, terminated, truncated) in enumerate(ended_N):
            # After a time limit the target bootstraps from the next state; after termination it does not.
            replay.add(here_NO[i], chosen_N[i], reward, after_NO[i], terminated)
            if terminated or truncated:
                envs.restart(i)
                after_NO[i] = online.encoder.raw(np.asarray(envs.now[i])[None])[0]
        here_NO = after_NO
        if envs.taken >= settings.warmup and envs.taken % settings.train_every < settings.envs:
            if settings.scale and not learner.done and not online.encoder.discrete:
                learner.set_scale(replay.observations[: len(replay)])
            for _ in range(settings.updates):
                metrics = learner.update(
                    replay.sample(settings.batch, rng), progress=envs.taken / settings.steps
                )
            means = {name: float(value.mean()) for name, value in metrics.items()}
            history.append({"step": envs.taken, "epsilon": epsilon, **means})
    return Result(online, envs.returns, envs.steps, history, time.perf_counter() - began)


class Learner:
    """The online network, the target network and the optimizer."""

    def __init__(self, online: QNetwork, settings: Settings) -> None:
        self.online, self.settings = online, settings
        self.target = QNetwork(online.encoder, online.hidden, online.actions)
        polyak_update(self.target, online, rate=1.0)
        self.optimizer = torch.optim.Adam([online.flat], lr=settings.learning_rate, fused=True)
        self.done = 0
        self.all_N = torch.ones(settings.batch, dtype=torch.bool)

    def set_scale(self, rows_NO: np.ndarray[Any, Any]) -> None:
        for network in (self.online, self.target):
            network.set_scale(rows_NO)

    def update(self, steps: Steps, *, progress: float) -> dict[str, Tensor]:
        """One gradient step on one sample, then the update of the target network."""
        settings = self.settings
        rate = settings.learning_rate * (1 - progress * (1 - settings.final_rate))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        z_N = targets(self.online, self.target, steps, gamma=settings.gamma, double=settings.double)
        q_N = self.online(torch.from_numpy(steps.observations_NO)).gather(
            1, torch.from_numpy(steps.actions_N)[:, None]
        )[:, 0]
        if settings.loss == "mse":
            loss = values.mse(q_N, z_N, self.all_N).mean()
        else:
            loss = values.huber(q_N, z_N, self.all_N, delta=1.0).mean()
        self.online.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.done += 1
        if self.done % settings.target_every == 0:
            polyak_update(self.target, self.online, rate=settings.target_rate)
        return {"loss": loss.detach(), "q": q_N.detach(), "target": z_N}


@torch.no_grad()
def targets(
    online: QNetwork, target: QNetwork, steps: Steps, *, gamma: float, double: bool
) -> Tensor:
    """r + gamma (1 - ended) Q_target(s', a'); a' is the best action of the target network, or of the online one if
    `double`."""
    after = torch.from_numpy(steps.after_NO)
    q_NA = target(after)
    best_N = online(after).argmax(-1) if double else q_NA.argmax(-1)
    future_N = q_NA.gather(1, best_N[:, None])[:, 0]
    return (
        torch.from_numpy(steps.rewards_N) + gamma * (1 - torch.from_numpy(steps.ended_N)) * future_N
    )


@torch.no_grad()
def polyak_update(target: QNetwork, online: QNetwork, *, rate: float) -> None:
    """target <- (1 - rate) target + rate online; rate 1 copies."""
    target.flat.lerp_(online.flat, rate)
