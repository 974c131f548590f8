"""The figures of docs/foundations by name: `ascent classic plots`."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from ascent.classic import estimation, plots, q_learning
from ascent.classic.exact import greedy_policy, optimal_values, policy_values
from ascent.classic.maze import Maze

LARGE = """
S....#....
.###.#.##.
.#...#..#.
.#.T.##.#.
.#...T..#.
.#####.##.
........#G
"""


@dataclass(frozen=True)
class Entry:
    summary: str
    make: Callable[[], Figure]


def maze_best() -> Figure:
    env = Maze()
    best = optimal_values(env.model(), gamma=0.99)
    return plots.value_map(
        env.grid, best, greedy_policy(best.q_SA), title="best policy, gamma 0.99"
    )


def maze_random() -> Figure:
    env = Maze()
    policy_SA = np.full((len(env.grid.cells), 4), 0.25)
    values = policy_values(env.model(), policy_SA, gamma=0.99)
    return plots.value_map(env.grid, values, policy_SA, title="random policy, gamma 0.99")


def maze_large() -> Figure:
    env = Maze(LARGE, slip=0.1)
    best = optimal_values(env.model(), gamma=0.97)
    return plots.value_map(env.grid, best, greedy_policy(best.q_SA), title="slip 0.1, gamma 0.97")


def q_table() -> Figure:
    exact = optimal_values(Maze().model(), gamma=0.99)
    settings = q_learning.Settings()
    runs = [
        q_learning.train("ascent/Maze-v0", settings, seed=seed, log_every=250) for seed in range(5)
    ]
    return plots.table_errors(runs, exact.q_SA)


def _demonstration(name: str, title: str) -> Figure:
    reports = estimation.demonstrations(samples=10, repetitions=20_000, seed=0)[name]
    return plots.spreads(reports, title=title)


def effective_samples() -> Figure:
    generator = torch.Generator().manual_seed(0)
    shifts = [0.1 * i for i in range(1, 21)]
    shares = [
        (s, *estimation.ess_of_shift(shift=s, samples=100_000, generator=generator)) for s in shifts
    ]
    target_V, behavior_V = (
        torch.tensor(row, dtype=torch.float64)
        for row in (estimation.POLICY_V, estimation.REFERENCE_V)
    )
    lengths = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    return plots.effective_samples(
        shares,
        estimation.sequence_weights(
            target_V, behavior_V, lengths=lengths, samples=10_000, generator=generator
        ),
    )


FIGURES = {
    "maze-best": Entry("the 2x3 maze: values and arrows of the best policy", maze_best),
    "maze-random": Entry("the same of the random policy", maze_random),
    "maze-large": Entry("a larger, slippery maze", maze_large),
    "q-table": Entry("Q-learning's distance from Q*, five seeds", q_table),
    "clip": Entry("PPO's clipped objective and its gradient, both signs", plots.clip_objective),
    "kl": Entry("bias and spread of k1, k2, k3", plots.kl_estimators),
    "control-variate": Entry(
        "k1 with more and more of a control variate",
        lambda: _demonstration("control-variate", "KL by k1 + c (e^x - 1)"),
    ),
    "antithetic": Entry(
        "independent draws against pairs", lambda: _demonstration("antithetic", "Antithetic pairs")
    ),
    "baselines": Entry(
        "a policy gradient under four baselines", lambda: _demonstration("baselines", "Baselines")
    ),
    "off-policy": Entry(
        "one policy judged by another's data",
        lambda: _demonstration("off-policy", "A policy's value"),
    ),
    "effective-samples": Entry("what importance weights leave of a sample", effective_samples),
}


def draw(name: str, folder: Path) -> Path:
    """Make one figure and write it to `folder`/`name`.png."""
    if name not in FIGURES:
        close = difflib.get_close_matches(name, FIGURES, n=2)
        raise ValueError(
            f"no figure is called {name!r}; {'did you mean ' + ' or '.join(close) + '? ' if close else ''}"
            f"known: {', '.join(FIGURES)}"
        )
    return plots.save(FIGURES[name].make(), folder / f"{name}.png")
