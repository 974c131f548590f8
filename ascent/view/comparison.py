"""Several runs beside each other: settings that differ, and curves, with seeds folded into a mean and a band."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ascent.view.library import RunReader
from ascent.view.metric_log import Curve, merge, smooth, thin

SEED = "seed"


def differing_settings(runs: Sequence[RunReader]) -> list[dict[str, Any]]:
    """The keys whose values differ, with one value per run, None where a run has no such key."""
    recipes = [run.recipe() for run in runs]
    keys = dict.fromkeys(key for each in recipes for key in each)
    rows = [{"key": key, "values": [each.get(key) for each in recipes]} for key in keys]
    return [row for row in rows if any(value != row["values"][0] for value in row["values"])]


def group_runs(runs: Sequence[RunReader], *, fold: bool) -> list[list[RunReader]]:
    """Runs that differ in their seed only, together, if `fold`; each alone otherwise."""
    groups: dict[str, list[RunReader]] = {}
    for run in runs:
        settings = {key: value for key, value in run.recipe().items() if key != SEED}
        key = (
            repr(sorted(settings.items(), key=lambda item: item[0]))
            if fold and settings
            else run.name
        )
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def compare_curves(
    runs: Sequence[RunReader],
    names: Sequence[str],
    *,
    fold: bool,
    axis: str,
    window: int,
    points: int,
) -> dict[str, Any]:
    """Groups with their labels, and for every metric one curve per group that has it."""
    groups = group_runs(runs, fold=fold)
    curves: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for place, group in enumerate(groups):
        for name in names:
            having = [run for run in group if name in run.metrics.columns.metrics]
            if having:
                curves[name].append(
                    {"group": place, **_group_curve(having, name, axis, window, points)}
                )
    return {
        "groups": [
            {"label": _label(group), "runs": [run.name for run in group]} for group in groups
        ],
        "curves": curves,
    }


def _group_curve(
    runs: Sequence[RunReader], name: str, axis: str, window: int, points: int
) -> dict[str, Any]:
    own = [run.metrics.columns.curve(name, axis) for run in runs]
    if len(runs) == 1:
        few = thin(smooth(own[0], window), points)
        return {"x": few.x.tolist(), "y": few.y.tolist()}
    by_step = [run.metrics.columns.curve(name, "step") for run in runs]
    mean, low, high = merge(own, by_step)
    lines = [smooth(Curve(mean.x, each, 0), window) for each in (mean.y, low, high)]
    stride = max(
        len(mean.x) // points, 1
    )  # all three at the same places, so that the band fits its line
    keys = ("y", "low", "high")
    return {
        "x": mean.x[::stride].tolist(),
        **{key: each.y[::stride].tolist() for key, each in zip(keys, lines, strict=True)},
    }


def _label(group: Sequence[RunReader]) -> str:
    if len(group) == 1:
        return group[0].name
    return f"{group[0].name} and {len(group) - 1} more seed{'s' if len(group) > 2 else ''}"
