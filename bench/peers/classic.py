"""One run of stable-baselines3 (or sb3-contrib's TRPO), for bench/classic.py to compare with. Prints one JSON line.

Run by the Python of an environment that holds those packages and nothing of ours:
    python bench/peers/classic.py ppo Acrobot-v1 --steps 60000 --seed 0
The settings are those that rl-baselines3-zoo publishes (hyperparams/ppo.yml and trpo.yml), steps aside.
"""

from __future__ import annotations

import argparse
import json
import time

import gymnasium
import numpy as np
import stable_baselines3
import torch
from sb3_contrib import TRPO
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

SDE = {"use_sde": True, "sde_sample_freq": 4}
TUNED = {
    ("ppo", "Acrobot-v1"): (
        {"n_envs": 16, "normalize": True},
        {"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
    ),
    ("ppo", "Pendulum-v1"): (
        {"n_envs": 4, "normalize": False},
        {
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "n_epochs": 10,
            "ent_coef": 0.0,
            "clip_range": 0.2,
        }
        | {"learning_rate": 1e-3}
        | SDE,
    ),
    ("trpo", "Acrobot-v1"): ({"n_envs": 2, "normalize": True}, {"n_steps": 1024}),
    ("trpo", "Pendulum-v1"): (
        {"n_envs": 2, "normalize": False},
        {"n_steps": 1024, "gamma": 0.9, "n_critic_updates": 15} | SDE,
    ),
}
ALGORITHMS = {"ppo": PPO, "trpo": TRPO}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithm", choices=ALGORITHMS)
    parser.add_argument("env_id")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--episodes", type=int, default=100)
    given = parser.parse_args()
    torch.set_num_threads(1)
    worlds, numbers = TUNED[given.algorithm, given.env_id]
    envs = make_vec_env(given.env_id, worlds["n_envs"], seed=given.seed * 1000)
    monitored = envs
    if worlds["normalize"]:
        envs = VecNormalize(envs, gamma=numbers.get("gamma", 0.99))
    model = ALGORITHMS[given.algorithm]("MlpPolicy", envs, seed=given.seed, device="cpu", **numbers)
    wall, cpu = time.perf_counter(), time.process_time()
    model.learn(given.steps)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    scale = envs.normalize_obs if worlds["normalize"] else lambda x: x
    if worlds["normalize"]:
        envs.training = False
    finals = evaluate(model, given.env_id, scale, given.episodes)
    trained = [value for some in monitored.env_method("get_episode_rewards") for value in some]
    report = {
        "final": float(np.mean(finals)),
        "over_training": float(np.mean(trained)),
        "steps": model.num_timesteps,
    }
    report |= {"seconds": wall, "cpu_seconds": cpu, "version": stable_baselines3.__version__}
    print(json.dumps(report))


def evaluate(model, env_id, scale, episodes, seed=1_000_000):
    """The same rule as ascent.classic.result.evaluate: one fresh environment per episode, deterministic actions."""
    envs = [gymnasium.make(env_id) for _ in range(episodes)]
    now = [env.reset(seed=seed + i)[0] for i, env in enumerate(envs)]
    returns, alive = [0.0] * episodes, list(range(episodes))
    while alive:
        actions, _ = model.predict(scale(np.stack([now[i] for i in alive])), deterministic=True)
        still = []
        for i, action in zip(alive, actions, strict=True):
            now[i], reward, over, late, _ = envs[i].step(action)
            returns[i] += float(reward)
            if not (over or late):
                still.append(i)
        alive = still
    return returns


if __name__ == "__main__":
    main()
