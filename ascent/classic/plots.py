"""Figures of the maze, of estimation and of PPO's clip, as matplotlib `Figure` objects without pyplot.

Axes: S cells, A actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from ascent.classic import estimation
from ascent.classic.estimation import Collapse, Report
from ascent.classic.exact import Values
from ascent.classic.maze import MOVES, Grid
from ascent.classic.result import Result
from ascent.losses import policy_losses

Floats = NDArray[np.float64]
BLUE, RED, GREY = "#3465a4", "#b3392f", "#808080"


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG, small enough to live in a repository."""
    if path.suffix != ".png":
        raise ValueError(f"{path} is not a .png file; figures are written as PNG")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, metadata={"Software": None})
    return path


def clip_objective(*, low: float = 0.2, high: float = 0.2) -> Figure:
    """PPO's objective and its gradient with respect to the log-prob, against the ratio, for A = +1 and A = -1."""
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    for axes, sign in zip(figure.subplots(1, 2), (1.0, -1.0), strict=True):
        ratio = torch.linspace(0.02, 2.0, 400, dtype=torch.float64)
        log_ratio = ratio.log().requires_grad_()
        advantages, every = torch.full_like(ratio, sign), torch.ones_like(ratio, dtype=torch.bool)
        objective = -policy_losses.clip(log_ratio, advantages, every, low=low, high=high).loss_T
        (slope,) = torch.autograd.grad(objective.sum(), log_ratio)
        axes.plot(ratio, sign * ratio, color=GREY, linewidth=1, linestyle=":", label="ratio * A")
        axes.plot(ratio, objective.detach(), color=BLUE, label="clipped objective")
        axes.plot(
            ratio, slope, color=RED, linewidth=1, linestyle="--", label="gradient wrt log-prob"
        )
        for edge in (1 - low, 1 + high):
            axes.axvline(edge, color=GREY, linewidth=0.6)
        axes.set_title(f"A = {sign:+.0f}", fontsize=10)
        axes.set_xlabel("ratio")
    figure.axes[0].legend(fontsize=8)
    return figure


def spreads(reports: Sequence[Report], *, title: str) -> Figure:
    """Each estimator's mean with one standard deviation to either side, and the exact answer as a line."""
    if not reports:
        raise ValueError("no reports to draw; give at least one")
    if len({row.exact for row in reports}) > 1:
        raise ValueError(
            "these reports estimate different numbers; draw one figure for each exact answer"
        )
    figure = Figure(figsize=(5.6, 0.42 * len(reports) + 1.1), layout="constrained")
    axes = figure.add_subplot()
    for height, row in enumerate(reversed(reports)):
        axes.errorbar(row.mean, height, xerr=row.std, fmt="o", color=BLUE, markersize=4, capsize=3)
    axes.axvline(reports[0].exact, color=RED, linewidth=1, label="exact")
    axes.set_yticks(range(len(reports)), [row.name for row in reversed(reports)], fontsize=8)
    axes.set_ylim(-0.6, len(reports) - 0.4)
    axes.set_title(f"{title} ({reports[0].samples} samples, mean and std)", fontsize=10)
    axes.legend(fontsize=8)
    return figure


def kl_estimators(*, samples: int = 10, repetitions: int = 20_000, seed: int = 0) -> Figure:
    """Bias and spread of k1, k2, k3 relative to the exact KL, as a policy of eight tokens leaves its reference."""
    generator = torch.Generator().manual_seed(seed)
    reference = torch.zeros(8, dtype=torch.float64)
    direction = torch.linspace(-1, 1, 8, dtype=torch.float64)
    rows = [
        estimation.kl_divergence(
            reference + far * direction,
            reference,
            samples=samples,
            repetitions=repetitions,
            generator=generator,
        )
        for far in (0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0)
    ]
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    bias, spread = figure.subplots(1, 2)
    exact = [row[0].exact for row in rows]
    for i, name in enumerate(("k1", "k2", "k3")):
        relative = [row[i].bias / row[i].exact for row in rows]
        doubt = [2 * row[i].standard_error / row[i].exact for row in rows]
        bias.errorbar(
            exact,
            relative,
            yerr=doubt,
            marker="o",
            markersize=3,
            capsize=2,
            linewidth=1,
            label=name,
        )
        spread.loglog(
            exact, [row[i].std / row[i].exact for row in rows], marker="o", markersize=3, label=name
        )
    bias.set_xscale("log")
    _label(bias, "exact KL (nats)", "bias / KL, two standard errors")
    _label(spread, "exact KL (nats)", f"std / KL, {samples} samples")
    bias.legend(fontsize=8)
    return figure


def effective_samples(
    shares: Sequence[tuple[float, float, float]], collapses: Sequence[Collapse]
) -> Figure:
    """How many samples are left: by the shift of a Gaussian (shift, measured, limit), and by a text's length."""
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    shift, length = figure.subplots(1, 2)
    shift.plot(
        [s for s, _, _ in shares],
        [m for _, m, _ in shares],
        "o",
        color=BLUE,
        markersize=4,
        label="measured",
    )
    shift.plot(
        [s for s, _, _ in shares],
        [e for _, _, e in shares],
        color=RED,
        linewidth=1,
        label="exp(-shift²)",
    )
    _label(shift, "shift of the sampling distribution", "effective share of samples")
    shift.legend(fontsize=8)
    steps = [row.length for row in collapses]
    length.loglog(
        steps,
        [row.product for row in collapses],
        marker="o",
        markersize=3,
        color=BLUE,
        label="product",
    )
    length.loglog(
        steps,
        [row.token for row in collapses],
        color=RED,
        linewidth=1,
        label="one token's own ratio",
    )
    _label(length, "tokens", "effective share of samples")
    length.legend(fontsize=8)
    return figure


def value_map(grid: Grid, values: Values, policy_SA: Floats, *, title: str) -> Figure:
    """Every free cell with its value, and an arrow as long as the policy's chance of each move."""
    if policy_SA.shape != (len(grid.cells), 4):
        raise ValueError(
            f"a policy of shape {policy_SA.shape} for a map of {len(grid.cells)} cells; one row each"
        )
    figure = Figure(figsize=(1.1 * grid.width + 1.6, 1.1 * grid.height + 0.7), layout="constrained")
    axes = figure.add_subplot()
    free_S = np.array([kind in "S." for kind in grid.cells])
    shown = np.where(free_S, values.v_S, np.nan).reshape(grid.height, grid.width)
    image = axes.imshow(shown, cmap="viridis")
    figure.colorbar(image, ax=axes, label="value", shrink=0.8)
    middle = np.nanmean([np.nanmin(shown), np.nanmax(shown)])
    for cell, kind in enumerate(grid.cells):
        row, column = divmod(cell, grid.width)
        if kind not in "S.":
            color = {"G": "#66b278", "T": "#d6605a", "#": "#404248"}[kind]
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color=color))
            axes.text(
                column,
                row,
                {"#": ""}.get(kind, kind),
                ha="center",
                va="center",
                color="white",
                weight="bold",
            )
            continue
        ink = "white" if values.v_S[cell] < middle else "black"
        axes.text(
            column - 0.44, row - 0.36, f"{values.v_S[cell]:.2f}", va="center", color=ink, fontsize=8
        )
        for chance, (down, right) in zip(policy_SA[cell], MOVES, strict=True):
            if chance > 0.01:
                axes.arrow(
                    column,
                    row,
                    0.3 * chance * right,
                    0.3 * chance * down,
                    color=ink,
                    width=0.02,
                    head_width=0.1,
                )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=10)
    return figure


def table_errors(results: Sequence[Result], exact_SA: Floats) -> Figure:
    """How far each run's table is from Q*, in its worst entry, against the steps taken."""
    if not results:
        raise ValueError("no runs to draw; give at least one result of q_learning.train")
    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for result in results:
        steps = [row["step"] for row in result.history]
        errors = [np.abs(np.asarray(row["q"]) - exact_SA).max() for row in result.history]
        axes.semilogy(steps, np.maximum(errors, 1e-16), linewidth=1)
    axes.axhline(1e-2, color="grey", linestyle="--", linewidth=1, label="1e-2")
    axes.set_xlabel("steps")
    axes.set_ylabel("largest |Q - Q*|")
    axes.set_title(f"Q-learning, {len(results)} seeds", fontsize=10)
    axes.legend()
    return figure


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
