"""Figures of the policy-gradient methods, and the numbers behind them.

    python -m ascent.classic.curves learning FILE        VPG, TRPO and PPO on CartPole, bands over five seeds
    python -m ascent.classic.curves variance FILE        variance and bias of the gradient estimators
    python -m ascent.classic.curves interpolation FILE   KL, CPI and clipped objective from the old to the new policy

Axes: G points of a grid of environment steps, R runs, T flat steps.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from torch import nn

from ascent.classic import policy_gradient, ppo, trpo, variance
from ascent.classic.batch import Batch, collect_batch
from ascent.classic.descent import FlatAdam
from ascent.classic.policies import StochasticPolicy
from ascent.classic.result import Result
from ascent.classic.run import start
from ascent.losses import policy_losses
from ascent.maths import masked

Array = np.ndarray[Any, Any]


def smoothed(result: Result, grid_G: Array, window: int) -> Array:
    """Mean return of the last `window` episodes finished by each step of the grid; NaN before the first episode."""
    if not result.returns:
        raise ValueError("no episode was finished, so there is no curve; train for more steps")
    sums = np.concatenate([[0.0], np.cumsum(result.returns)])
    done_G = np.searchsorted(result.steps, grid_G, side="right")
    first_G = np.maximum(done_G - window, 0)
    counts_G = np.maximum(done_G - first_G, 1)
    return np.where(done_G > 0, (sums[done_G] - sums[first_G]) / counts_G, np.nan)


def band(
    results: Sequence[Result], *, points: int = 100, window: int = 20
) -> tuple[Array, Array, Array, Array]:
    """Grid of steps, and over the runs the mean, the lowest and the highest smoothed return at each of its points."""
    if not results:
        raise ValueError("no runs to draw; give at least one Result")
    grid_G = np.linspace(0, min(result.steps[-1] for result in results), points + 1)[1:]
    curves_RG = np.stack([smoothed(result, grid_G, window) for result in results])
    seen_G = ~np.isnan(curves_RG).any(0)
    grid_G, curves_RG = grid_G[seen_G], curves_RG[:, seen_G]
    return grid_G, curves_RG.mean(0), curves_RG.min(0), curves_RG.max(0)


def plot_learning(
    runs: Mapping[str, Sequence[Result]], path: Path, *, title: str = "", mark: float | None = None
) -> None:
    """Learning curves: a line for the mean over seeds, a band from the worst to the best seed."""
    figure, axes = pyplot.subplots(figsize=(6.4, 3.8))
    for name, results in runs.items():
        grid_G, mean_G, low_G, high_G = band(results)
        (line,) = axes.plot(grid_G, mean_G, label=f"{name} ({len(results)} seeds)")
        axes.fill_between(grid_G, low_G, high_G, color=line.get_color(), alpha=0.2, linewidth=0)
    if mark is not None:
        axes.axhline(mark, color="0.4", linestyle=":", linewidth=1)
    axes.set(xlabel="environment steps", ylabel="return (last 20 episodes)", title=title)
    axes.legend(frameon=False)
    finish(figure, path)


def plot_variance(estimates: Mapping[str, variance.Estimate], path: Path) -> None:
    """Left: total variance of each estimator. Right: GAE's bias against its variance as lam goes from 0 to 1."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.0, 3.8), width_ratios=(3, 2))
    named = {name: found for name, found in estimates.items() if not name.startswith("gae")}
    by_lam = {
        name.split("=")[1]: found for name, found in estimates.items() if name.startswith("gae")
    }
    colors = ["C0" if name in variance.UNBIASED else "C1" for name in named]
    bars = left.bar(list(named), [found.total_variance for found in named.values()], color=colors)
    left.bar_label(bars, fmt="%.0f", fontsize=8)
    left.set(ylabel="total variance of one batch's gradient", title="blue: unbiased, orange: not")
    left.tick_params(axis="x", labelrotation=20)
    bias = [max(found.squared_bias, 0.0) for found in by_lam.values()]
    right.plot([found.total_variance for found in by_lam.values()], bias, marker="o")
    for lam, found, height in zip(by_lam, by_lam.values(), bias, strict=True):
        right.annotate(
            lam,
            (found.total_variance, height),
            textcoords="offset points",
            xytext=(5, 5),
            fontsize=8,
        )
    right.set(xlabel="total variance", ylabel="squared bias", title="GAE, by lam")
    finish(figure, path)


def interpolate(
    old: StochasticPolicy,
    new: StochasticPolicy,
    batch: Batch,
    shares: Sequence[float],
    *,
    clip: float = 0.2,
) -> dict[str, list[float]]:
    """Along theta_old + share (theta_new - theta_old): exact KL(old || .), the surrogate (CPI), PPO's clipped one."""
    here, there = (
        nn.utils.parameters_to_vector(policy.parameters()).detach() for policy in (old, new)
    )
    mover = copy.deepcopy(old)
    found: dict[str, list[float]] = {"kl": [], "cpi": [], "clipped": []}
    for share in shares:
        nn.utils.vector_to_parameters(here + share * (there - here), mover.parameters())
        with torch.inference_mode():
            outputs_TP = mover(batch.observations_TO)
            terms = (batch.log_ratio(mover, outputs_TP), batch.advantages_T, batch.loss_mask_T)
            found["kl"].append(float(mover.kl(batch.old_outputs_TP, outputs_TP).mean()))
            found["cpi"].append(
                -float(masked.mean(policy_losses.surrogate(*terms).loss_T, batch.loss_mask_T))
            )
            clipped = policy_losses.clip(*terms, low=clip, high=clip)
            found["clipped"].append(-float(masked.mean(clipped.loss_T, batch.loss_mask_T)))
    return found


def plot_interpolation(
    shares: Sequence[float], found: Mapping[str, Sequence[float]], path: Path
) -> None:
    """The three curves over the share of the step; 0 is the old policy and 1 the one after PPO's update."""
    figure, axes = pyplot.subplots(figsize=(6.4, 3.8))
    labels = {"kl": "KL(old || ·)", "cpi": "surrogate (CPI)", "clipped": "clipped objective"}
    for key, label in labels.items():
        axes.plot(shares, found[key], label=label)
    for share in (0, 1):
        axes.axvline(share, color="0.4", linestyle=":", linewidth=1)
    axes.axhline(0, color="0.7", linewidth=0.8)
    axes.set(
        xlabel="share of the way from the old policy (0) to the new one (1)",
        ylabel="mean over the rollout",
    )
    axes.legend(frameon=False)
    finish(figure, path)


def finish(figure: Any, path: Path) -> None:
    for axes in figure.axes:
        tidy(axes)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a creation date, so that the same run writes the same bytes.
    figure.savefig(path, dpi=90, metadata={"Software": None})
    pyplot.close(figure)


def tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)


def draw_learning(path: Path, *, steps: int = 40_000, seeds: int = 5) -> None:
    methods: dict[str, tuple[Any, Any]] = {
        "VPG": (policy_gradient, policy_gradient.Settings(steps=steps, lr=1e-2, whiten=True)),
        "TRPO": (
            trpo,
            trpo.Settings(steps=steps, envs=8, length=256, damping=0.01, critic_lr=3e-3),
        ),
        "PPO": (ppo, ppo.Settings(steps=steps, length=128, gamma=0.98, lam=0.9, lr=1e-3)),
    }
    runs = {
        name: [method.train("CartPole-v1", settings, seed=seed) for seed in range(seeds)]
        for name, (method, settings) in methods.items()
    }
    plot_learning(runs, path, title="CartPole-v1", mark=475.0)


def draw_variance(path: Path, *, batches: int = 400) -> None:
    lams = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 1.0)
    settings = variance.Settings(batches=batches, episodes=16, critic_episodes=320, lams=lams)
    plot_variance(variance.study("CartPole-v1", settings, seed=0), path)


def draw_interpolation(path: Path, *, updates: int = 5) -> None:
    """Train PPO for a few updates, then look along the step of the next one."""
    settings = ppo.Settings(envs=8, length=256, epochs=10, minibatch=256, lr=1e-3)
    run = start("CartPole-v1", settings, seed=0)
    parameters = [*run.policy.parameters(), *run.critic.parameters()]
    optimizer = FlatAdam(parameters, lr=settings.lr, eps=1e-5, norm=settings.grad_norm)
    for _ in range(updates + 1):
        batch, _ = collect_batch(run, settings)
        old = copy.deepcopy(run.policy)
        ppo.improve(run, batch, optimizer, settings, beta=0.0)
    shares = np.linspace(-0.5, 2.5, 61).tolist()
    plot_interpolation(
        shares, interpolate(old, run.policy, batch, shares, clip=settings.clip), path
    )


FIGURES: dict[str, Callable[[Path], None]] = {
    "learning": draw_learning,
    "variance": draw_variance,
    "interpolation": draw_interpolation,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("path", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    FIGURES[given.figure](given.path)
    print(f"wrote {given.path} ({given.path.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
