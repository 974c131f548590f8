"""The main curves of a run as one image."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from ascent.metrics import EVAL, plotted

# By importance. A held-out value of the same metric is a second line in its panel.
MAIN = (*plotted(), *(EVAL + name for name in plotted()))
MAX_PANELS, MAX_COLUMNS = 6, 3

Records = Sequence[Mapping[str, float]]


def select_metrics(records: Records) -> list[str]:
    """The main metrics that have a finite value, then others in order of appearance."""
    finite = {name for record in records for name, value in record.items() if math.isfinite(value)}
    known = [name for name in MAIN if name in finite]
    others = [
        name for record in records for name in record if name in finite and name not in ("step", "timestamp", *known)
    ]
    names = list(dict.fromkeys(known + others))
    panels = [name for name in names if not (name.startswith(EVAL) and name.removeprefix(EVAL) in finite)]
    # Equal curves are drawn once: reward/mean equals reward/correct where the reward is 0 or 1.
    values = [points(records, name) for name in panels]
    return [name for index, name in enumerate(panels) if values[index] not in values[:index]][:MAX_PANELS]


def points(records: Records, name: str) -> list[tuple[float, float]]:
    """(step, value) of the finite values."""
    return [(record["step"], record[name]) for record in records if math.isfinite(record.get(name, math.nan))]


def draw(records: Records, path: Path, *, title: str = "") -> list[str]:
    """Draw the main metrics over steps into a PNG; returns their names."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = select_metrics(records)
    if not names:
        raise ValueError("there is nothing to draw: no metric has a finite value")
    columns = min(MAX_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(4 * columns, 3 * rows), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    for panel, name in enumerate(names, start=1):
        axes = figure.add_subplot(rows, columns, panel)
        for each, label in ((name, "training"), (EVAL + name, "held-out")):
            found = points(records, each)
            if found:
                marker = "o" if len(found) < 30 else ""
                axes.plot(*zip(*found, strict=True), marker=marker, markersize=3, linewidth=1.2, label=label)
        if len(axes.lines) > 1:
            axes.legend(fontsize=8)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, format="png")
    return names
