"""The main curves of a run as one picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

# What people look at first, in that order; as many as were logged are drawn.
MAIN = (
    *("reward", "accuracy", "evaluate/reward", "evaluate/accuracy", "evaluate/loss", "loss", "margin"),
    *("kl_to_reference_k3", "kl_to_old", "entropy", "completion_tokens", "grad_norm", "learning_rate"),
)
MOST, ACROSS = 6, 3


def chosen(records: Sequence[Mapping[str, float]]) -> list[str]:
    """The main metrics that have a number somewhere; others in order of appearance where too few are known."""
    finite = {name for record in records for name, value in record.items() if math.isfinite(value)}
    known = [name for name in MAIN if name in finite]
    others = [name for record in records for name in record if name in finite and name not in ("step", "time", *known)]
    return (known + list(dict.fromkeys(others)))[:MOST]


def draw(records: Sequence[Mapping[str, float]], path: Path, *, title: str = "") -> list[str]:
    """Draw the chosen metrics over steps into a PNG; returns their names."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = chosen(records)
    if not names:
        raise ValueError("there is nothing to draw: no metric has a finite value")
    across = min(ACROSS, len(names))
    down = math.ceil(len(names) / across)
    figure = Figure(figsize=(4 * across, 3 * down), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    for place, name in enumerate(names, start=1):
        points = [(record["step"], record[name]) for record in records if math.isfinite(record.get(name, math.nan))]
        axes = figure.add_subplot(down, across, place)
        axes.plot(*zip(*points, strict=True), marker="o" if len(points) < 30 else "", markersize=3, linewidth=1.2)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, format="png")
    return names
