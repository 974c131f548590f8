"""The main curves of one run, or of several, as one image."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascent.config.changes import evaluated_since
from ascent.metrics import EVAL, larger_is_better, plotted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# By importance. A held-out value of the same metric is a second line in its panel.
MAIN = (*plotted(), *(EVAL + name for name in plotted()))
# Groups of which only the main metrics are drawn: the others are counters and parts of a sum.
ACCOUNTS = ("denominator", "statistic", "tokens", "time", "optim", "loss")
MAX_PANELS, MAX_COLUMNS = 6, 3
FORMATS = (".png", ".svg", ".pdf")

Point = tuple[float, float]
Records = Sequence[Mapping[str, float]]


def select_metrics(records: Records) -> list[str]:
    """The main metrics that have a finite value, then others in order of appearance."""
    finite = {name for record in records for name, value in record.items() if math.isfinite(value)}
    known = [name for name in MAIN if name in finite]
    others = [
        name
        for record in records
        for name in record
        if name in finite
        and name not in ("step", "timestamp", *known)
        and name.removeprefix(EVAL).partition("/")[0] not in ACCOUNTS
    ]
    names = list(dict.fromkeys(known + others))
    panels = [
        name for name in names if not (name.startswith(EVAL) and name.removeprefix(EVAL) in finite)
    ]
    # Equal curves are drawn once: reward/mean equals reward/correct where the reward is 0 or 1.
    values = [points(records, name) for name in panels]
    return [name for index, name in enumerate(panels) if values[index] not in values[:index]][
        :MAX_PANELS
    ]


def points(records: Records, name: str) -> list[Point]:
    """(step, value) of the finite values."""
    return [
        (record["step"], record[name])
        for record in records
        if math.isfinite(record.get(name, math.nan))
    ]


def best_point(
    name: str,
    curve: Sequence[Point],
    changes: Sequence[Mapping[str, Any]],
    recipe: Mapping[str, Any],
) -> Point:
    """The best of the values that can be compared with the last one."""
    return (max if larger_is_better(name) else min)(
        comparable(name, curve, changes, recipe), key=lambda point: point[1]
    )


def comparable(
    name: str,
    curve: Sequence[Point],
    changes: Sequence[Mapping[str, Any]],
    recipe: Mapping[str, Any],
) -> Sequence[Point]:
    """The values that were measured as the last one was. `changes`: the lines of changes.jsonl."""
    samples = name.startswith((f"{EVAL}reward/", f"{EVAL}completion/"))
    since = evaluated_since(changes, recipe, samples=samples) if name.startswith(EVAL) else 0
    return [each for each in curve if each[0] >= since] or curve[-1:]


def draw(records: Records, path: Path, *, title: str = "") -> list[str]:
    """Draw the main metrics over steps into a PNG; returns their names."""
    names = select_metrics(records)
    if not names:
        raise ValueError("there is nothing to draw: no metric has a finite value")
    draw_metrics(records, names, path, title=title)
    return names


def draw_metrics(
    records: Records, names: Sequence[str], path: Path, *, title: str = "", mark: int | None = None
) -> None:
    """Draw these metrics over steps into a PNG, with a vertical line at the step `mark`."""
    figure, panels = _panels(names, title)
    for axes, name in zip(panels, names, strict=True):
        for each, label in ((name, "training"), (EVAL + name, "held-out")):
            found = points(records, each)
            if found:
                _line(axes, found, label)
        if len(axes.lines) > 1:
            axes.legend(fontsize=8)
        if mark is not None:
            axes.axvline(mark, color="tab:red", linestyle="--", linewidth=1)
    _share_steps(panels, [record["step"] for record in records])
    figure.savefig(path, format="png")


def draw_comparison(
    groups: Mapping[str, Sequence[Records]], names: Sequence[str], path: Path
) -> None:
    """One panel per metric and one line per group of runs: their mean, in a band from the lowest to the highest."""
    if path.suffix not in FORMATS:
        raise ValueError(f"{path} cannot be drawn; its name must end in {', '.join(FORMATS)}")
    figure, panels = _panels(names, "")
    for axes, name in zip(panels, names, strict=True):
        for label, runs in groups.items():
            found = merge_curves([points(records, name) for records in runs])
            if found:
                line = _line(
                    axes, [(step, statistics.fmean(values)) for step, values in found], label
                )
                if len(runs) > 1:
                    steps, low, high = zip(
                        *((step, min(values), max(values)) for step, values in found), strict=True
                    )
                    axes.fill_between(
                        steps, low, high, color=line.get_color(), alpha=0.2, linewidth=0
                    )
    _share_steps(
        panels,
        [record["step"] for runs in groups.values() for records in runs for record in records],
    )
    handles = {str(line.get_label()): line for axes in panels for line in axes.lines}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def merge_curves(curves: Sequence[Sequence[Point]]) -> list[tuple[float, list[float]]]:
    """The values of several runs at each step that all of them have."""
    by_step = [dict(curve) for curve in curves]
    shared = set(by_step[0]).intersection(*by_step[1:]) if by_step else set()
    return [(step, [values[step] for values in by_step]) for step in sorted(shared)]


def _panels(names: Sequence[str], title: str) -> tuple[Any, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = 2 if len(names) == 4 else min(MAX_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(4 * columns, 3 * rows), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    panels = [figure.add_subplot(rows, columns, panel) for panel in range(1, len(names) + 1)]
    for axes, name in zip(panels, names, strict=True):
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
    figure.suptitle(title, fontsize=11)
    return figure, panels


def _line(axes: Axes, found: Sequence[Point], label: str) -> Any:
    marker = "o" if len(found) < 30 else ""
    return axes.plot(
        *zip(*found, strict=True), marker=marker, markersize=3, linewidth=1.2, label=label
    )[0]


def _share_steps(panels: Sequence[Axes], steps: Sequence[float]) -> None:
    """The same range of steps in every panel, with ticks at whole steps."""
    from matplotlib.ticker import MaxNLocator

    margin = max(0.03 * (max(steps) - min(steps)), 0.1)
    for axes in panels:
        axes.set_xlim(min(steps) - margin, max(steps) + margin)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
