"""The main curves of a run as one picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from ascent.metrics import EVAL, plotted

# What people look at first, in that order; as many as were logged are drawn. Where a number was also measured on
# held-out data, that is a second line in the same panel.
MAIN = (*plotted(), *(EVAL + name for name in plotted()))
MOST, ACROSS = 6, 3

Records = Sequence[Mapping[str, float]]


def chosen(records: Records) -> list[str]:
    """The main metrics that have a number somewhere; others in order of appearance where too few are known."""
    finite = {name for record in records for name, value in record.items() if math.isfinite(value)}
    known = [name for name in MAIN if name in finite]
    others = [
        name for record in records for name in record if name in finite and name not in ("step", "timestamp", *known)
    ]
    names = list(dict.fromkeys(known + others))
    own = [name for name in names if not (name.startswith(EVAL) and name.removeprefix(EVAL) in finite)]
    # A reward that is 1 or 0 for right or wrong need not be drawn twice.
    seen = [points(records, name) for name in own]
    return [name for place, name in enumerate(own) if seen[place] not in seen[:place]][:MOST]


def points(records: Records, name: str) -> list[tuple[float, float]]:
    """(step, value) wherever there is a finite one."""
    return [(record["step"], record[name]) for record in records if math.isfinite(record.get(name, math.nan))]


def draw(records: Records, path: Path, *, title: str = "") -> list[str]:
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
        axes = figure.add_subplot(down, across, place)
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
