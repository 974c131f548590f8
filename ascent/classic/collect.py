"""Rollouts as packed steps of many environments: one flat step axis, one segment per piece of an episode.

Axes: T flat steps, B pieces (an episode, or the part of one that fell into this rollout), N environments, O observation
entries. The steps of one environment lie together in time order, so the functions that serve packed tokens serve these.

A piece ends in one of three ways:
  terminated   the task is over: bootstrap 0
  truncated    the time limit: bootstrap from the state after the last step
  cut          the rollout ends within the episode: likewise
`last_observations_BO` is the true state after a piece's last step, never the first state of the next episode.

Environments are stepped in a loop and reset in the step in which they end. The time limit is counted here, and
gymnasium's TimeLimit, order and space checkers are removed to save three Python calls per step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from torch import Tensor

from ascent.classic.environments import open_env
from ascent.classic.policies import Encoder, StochasticPolicy
from ascent.maths.segments import Segments

Array = np.ndarray[Any, Any]
REWARD_LIMIT = 10.0


@dataclass(frozen=True)
class Rollout:
    """Packed steps. Observations are encoded (and scaled) exactly as the policy saw them when it acted."""

    observations_TO: Tensor
    actions: Tensor
    rewards_T: Tensor
    segments: Segments
    last_observations_BO: Tensor
    terminated_B: Tensor

    @property
    def loss_mask_T(self) -> Tensor:
        return torch.ones(self.segments.total, dtype=torch.bool)


class RunningMoments:
    """Running mean and variance per entry, in float64, merged batch by batch (Chan et al., 1979)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0.0
        self.mean = np.zeros(shape)
        self.variance = np.ones(shape)

    def update(self, batch: Array) -> None:
        """Merge a batch (first axis: samples)."""
        rows, mean, variance = (
            len(batch),
            batch.mean(0, dtype=np.float64),
            batch.var(0, dtype=np.float64),
        )
        total = self.count + rows
        off = mean - self.mean
        spread = self.variance * self.count + variance * rows + off**2 * (self.count * rows / total)
        self.mean = self.mean + off * (rows / total)
        self.variance = spread / total
        self.count = total

    @property
    def std(self) -> Array:
        """Standard deviation; 1 for entries that never vary."""
        return np.sqrt(np.where(self.variance < 1e-8, 1.0, self.variance))


class Environments:
    """N copies of one environment, and the returns of all finished episodes."""

    def __init__(self, env_id: str, count: int, seed: int, *, gamma: float | None = None) -> None:
        """With `gamma`, rewards are divided by the running std of their discounted sum."""
        if count < 1:
            raise ValueError(f"{env_id}: {count} environments, but a rollout needs at least 1")
        bare = [_unwrap(open_env(env_id)) for _ in range(count)]
        self.envs, self.limit = [env for env, _ in bare], bare[0][1]
        self.observation_space, self.action_space = (
            self.envs[0].observation_space,
            self.envs[0].action_space,
        )
        self.now = [env.reset(seed=seed + i)[0] for i, env in enumerate(self.envs)]
        self.ages, self.running = [0] * count, [0.0] * count
        self.taken = 0
        self.returns: list[float] = []
        self.steps: list[int] = []
        self.gamma, self.sums_N, self.moments = gamma, np.zeros(count), RunningMoments(())

    def __len__(self) -> int:
        return len(self.envs)

    def commands(self, actions: Array) -> list[Any]:
        """The action of each environment: an int, or a vector clipped to the box."""
        if isinstance(self.action_space, spaces.Box):
            return list(np.clip(actions, self.action_space.low, self.action_space.high))
        return actions.tolist()

    def step(self, i: int, action: Any) -> tuple[float, bool, bool]:
        """Step environment i; (reward, terminated, truncated). `self.now[i]` is the state it led to."""
        self.now[i], reward, terminated, truncated, _ = self.envs[i].step(action)
        self.ages[i] += 1
        self.running[i] += float(reward)
        self.taken += 1
        return float(reward), terminated, truncated or self.ages[i] >= self.limit

    def restart(self, i: int) -> None:
        """Record the episode that environment i finished and start the next one."""
        self.returns.append(self.running[i])
        self.steps.append(self.taken)
        self.ages[i], self.running[i] = 0, 0.0
        self.now[i] = self.envs[i].reset()[0]

    def scale_rewards(self, rewards_LN: Array, ended_LN: Array) -> Array:
        """Rewards over the running std of the discounted return so far, held in +-10; the mean is left alone."""
        if self.gamma is None:
            return rewards_LN
        sums_LN = np.empty_like(rewards_LN, dtype=np.float64)
        for t, (rewards_N, ended_N) in enumerate(zip(rewards_LN, ended_LN, strict=True)):
            self.sums_N = self.sums_N * self.gamma + rewards_N
            sums_LN[t] = self.sums_N
            self.sums_N[ended_N] = 0.0
        self.moments.update(sums_LN.reshape(-1))
        return np.clip(rewards_LN / self.moments.std, -REWARD_LIMIT, REWARD_LIMIT)


class ObservationScale:
    """Updates the encoder's shift and scale between rollouts, so that each rollout has one encoding."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.moments = encoder, RunningMoments((encoder.size,))

    def learn(self, raw_TO: Array) -> None:
        self.moments.update(raw_TO)
        self.encoder.set_scale(self.moments.mean, self.moments.std)


def collect_steps(
    policy: StochasticPolicy,
    environments: Environments,
    length: int,
    rng: np.random.Generator,
    scale: ObservationScale | None = None,
) -> Rollout:
    """`length` steps of every environment. Episodes run on into the next rollout."""
    if length < 1:
        raise ValueError(f"a rollout of {length} steps per environment; it must be at least 1")
    count, encoder = len(environments), policy.encoder
    raw_LNO = np.empty((length, count, encoder.size), dtype=np.float32)
    rewards_LN = np.empty((length, count), dtype=np.float32)
    ended_LN = np.zeros((length, count), dtype=bool)
    chosen, finals, terminated = [], {}, set()
    for t in range(length):
        raw_LNO[t] = encoder.raw(np.asarray(environments.now))
        actions_N = policy.choose(encoder.rescale(raw_LNO[t]), rng)
        chosen.append(actions_N)
        for i, command in enumerate(environments.commands(actions_N)):
            rewards_LN[t, i], over, out_of_time = environments.step(i, command)
            if over or out_of_time:
                ended_LN[t, i] = True
                finals[i, t] = np.array(environments.now[i])
                if over:
                    terminated.add((i, t))
                environments.restart(i)
    for i in range(count):
        finals.setdefault((i, length - 1), np.array(environments.now[i]))
    rewards_LN = environments.scale_rewards(rewards_LN, ended_LN)
    places = sorted(finals)
    ends = [i * length + t for i, t in places]
    raw_TO = raw_LNO.swapaxes(0, 1).reshape(count * length, encoder.size)
    rollout = Rollout(
        torch.from_numpy(encoder.rescale(raw_TO)),
        torch.from_numpy(np.stack(chosen, axis=1).reshape(count * length, *chosen[0].shape[1:])),
        torch.from_numpy(np.ascontiguousarray(rewards_LN.T).reshape(-1)).float(),
        Segments.from_lengths(np.diff(ends, prepend=-1).tolist()),
        torch.from_numpy(
            encoder.rescale(encoder.raw(np.asarray([finals[place] for place in places])))
        ),
        torch.tensor([place in terminated for place in places]),
    )
    if scale is not None:
        scale.learn(raw_TO)
    return rollout


def collect_episodes(
    policy: StochasticPolicy, environments: Environments, episodes: int, rng: np.random.Generator
) -> Rollout:
    """Exactly `episodes` whole episodes, shared evenly between the environments.

    Stopping at a number of steps would favor short episodes and bias the mean over episodes.
    """
    count = len(environments)
    if episodes < 1 or episodes % count:
        raise ValueError(
            f"{episodes} episodes on {count} environments; episodes must be a multiple of environments"
        )
    owed = [episodes // count] * count
    tracks: list[list[tuple[Array, Any, float]]] = [[] for _ in range(count)]
    lengths: list[list[int]] = [[] for _ in range(count)]
    finals: list[list[Array]] = [[] for _ in range(count)]
    terminated: list[list[bool]] = [[] for _ in range(count)]
    alive = list(range(count))
    while alive:
        encoded_NO = policy.encoder.rescale(
            policy.encoder.raw(np.asarray([environments.now[i] for i in alive]))
        )
        actions_N = policy.choose(encoded_NO, rng)
        for row, i, action, command in zip(
            encoded_NO, alive, actions_N, environments.commands(actions_N), strict=True
        ):
            reward, over, out_of_time = environments.step(i, command)
            tracks[i].append((row, action, reward))
            if over or out_of_time:
                lengths[i].append(len(tracks[i]) - sum(lengths[i]))
                finals[i].append(np.array(environments.now[i]))
                terminated[i].append(over)
                owed[i] -= 1
                environments.restart(i)
        alive = [i for i in alive if owed[i]]
    steps = [step for track in tracks for step in track]
    last_BO = policy.encoder.rescale(
        policy.encoder.raw(np.stack([final for some in finals for final in some]))
    )
    return Rollout(
        torch.from_numpy(np.stack([row for row, _, _ in steps])),
        torch.from_numpy(np.stack([action for _, action, _ in steps])),
        torch.tensor([reward for _, _, reward in steps]),
        Segments.from_lengths([length for some in lengths for length in some]),
        torch.from_numpy(last_BO),
        torch.tensor([over for some in terminated for over in some]),
    )


def _unwrap(env: gymnasium.Env[Any, Any]) -> tuple[gymnasium.Env[Any, Any], float]:
    """The environment without gymnasium's own checkers, and its time limit; other wrappers stay."""
    limit = env.spec.max_episode_steps if env.spec is not None else None
    while isinstance(env, TimeLimit | OrderEnforcing | PassiveEnvChecker):
        env = env.env
    return env, float("inf") if limit is None else float(limit)
