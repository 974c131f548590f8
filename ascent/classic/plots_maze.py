"""Figures of the maze: values as colors with the policy's arrows, and a table growing towards Q*.

Axes: S cells, A actions. Figures are matplotlib `Figure` objects, made without pyplot: no global state, no window.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from ascent.classic.exact import Values
from ascent.classic.maze import MOVES, Grid
from ascent.classic.result import Result

Floats = NDArray[np.float64]


def value_map(grid: Grid, values: Values, policy_SA: Floats, *, title: str) -> Figure:
    """Every free cell with its value, and an arrow as long as the policy's chance of each move."""
    if policy_SA.shape != (len(grid.cells), 4):
        raise ValueError(f"a policy of shape {policy_SA.shape} for a map of {len(grid.cells)} cells; one row each")
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
            axes.text(column, row, {"#": ""}.get(kind, kind), ha="center", va="center", color="white", weight="bold")
            continue
        ink = "white" if values.v_S[cell] < middle else "black"
        axes.text(column - 0.44, row - 0.36, f"{values.v_S[cell]:.2f}", va="center", color=ink, fontsize=8)
        for chance, (down, right) in zip(policy_SA[cell], MOVES, strict=True):
            if chance > 0.01:
                axes.arrow(
                    column, row, 0.3 * chance * right, 0.3 * chance * down, color=ink, width=0.02, head_width=0.1
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
