"""Figures of estimation and of the clip: finished numbers in, a matplotlib `Figure` out, without pyplot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ascent.classic import estimation
from ascent.classic.estimation import Collapse, Report
from ascent.losses import policy_losses

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
        axes.plot(ratio, slope, color=RED, linewidth=1, linestyle="--", label="gradient wrt log-prob")
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
        raise ValueError("these reports estimate different numbers; draw one figure for each exact answer")
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
            reference + far * direction, reference, samples=samples, repetitions=repetitions, generator=generator
        )
        for far in (0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0)
    ]
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    bias, spread = figure.subplots(1, 2)
    exact = [row[0].exact for row in rows]
    for i, name in enumerate(("k1", "k2", "k3")):
        relative = [row[i].bias / row[i].exact for row in rows]
        doubt = [2 * row[i].standard_error / row[i].exact for row in rows]
        bias.errorbar(exact, relative, yerr=doubt, marker="o", markersize=3, capsize=2, linewidth=1, label=name)
        spread.loglog(exact, [row[i].std / row[i].exact for row in rows], marker="o", markersize=3, label=name)
    bias.set_xscale("log")
    _label(bias, "exact KL (nats)", "bias / KL, two standard errors")
    _label(spread, "exact KL (nats)", f"std / KL, {samples} samples")
    bias.legend(fontsize=8)
    return figure


def effective_samples(shares: Sequence[tuple[float, float, float]], collapses: Sequence[Collapse]) -> Figure:
    """How many samples are left: by the shift of a Gaussian (shift, measured, limit), and by a text's length."""
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    shift, length = figure.subplots(1, 2)
    shift.plot([s for s, _, _ in shares], [m for _, m, _ in shares], "o", color=BLUE, markersize=4, label="measured")
    shift.plot([s for s, _, _ in shares], [e for _, _, e in shares], color=RED, linewidth=1, label="exp(-shift²)")
    _label(shift, "shift of the sampling distribution", "effective share of samples")
    shift.legend(fontsize=8)
    steps = [row.length for row in collapses]
    length.loglog(steps, [row.product for row in collapses], marker="o", markersize=3, color=BLUE, label="product")
    length.loglog(steps, [row.token for row in collapses], color=RED, linewidth=1, label="one token's own ratio")
    _label(length, "tokens", "effective share of samples")
    length.legend(fontsize=8)
    return figure


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
