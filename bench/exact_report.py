"""The report of bench/exact_study.py: a table and a figure, with means and 95% intervals over the seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from staleness import interval, pyplot

ARMS = ("fast", "corrected", "exact")
STYLES = (":", "-", "--")  # by staleness
LAST = 20  # steps that the end of a run is averaged over

Rows = dict[tuple[int, str], dict[int, dict[str, Any]]]  # by staleness and arm, then by seed


def by_arm(runs: list[dict[str, Any]]) -> Rows:
    found: Rows = {}
    for row in sorted(
        runs, key=lambda each: (each["staleness"], ARMS.index(each["arm"]), each["seed"])
    ):
        found.setdefault((row["staleness"], row["arm"]), {})[row["seed"]] = row
    return found


def values(rows: Iterable[dict[str, Any]], name: str, last: int = 0) -> list[float]:
    """A metric's numbers over all steps, or the last ones, of all runs."""
    return [value for row in rows for value in row["curves"][name][-last:] if value is not None]


def shown(numbers: list[float], pick: Callable[[list[float]], float] = statistics.fmean) -> str:
    return f"{pick(numbers):.3g}" if numbers else "-"


def with_interval(numbers: list[float], sign: str = "") -> str:
    """The mean and its 95% interval over seeds (Student's t); one seed has none."""
    if len(numbers) < 2:
        return f"{numbers[0]:{sign}.3f} (one seed)" if numbers else "-"
    mean, half = interval(numbers)
    return f"{mean:{sign}.3f} ({mean - half:{sign}.3f} to {mean + half:{sign}.3f})"


def end(row: dict[str, Any]) -> float | None:
    """Held-out accuracy of a run that came to its end."""
    return row["after"] if row["outcome"] == "finished" else None


def table(arms: Rows) -> str:
    titles = (
        "staleness",
        "arm",
        "finished",
        "before",
        "held-out after",
        "minus fast, by seed",
        f"training, last {LAST}",
        "logprob_diff",
        "max",
        "is_ess",
        "ratio max",
        "ratio min",
        "clipped",
        "entropy, end",
        "grad norm",
        "max",
        "s per step",
    )
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for (age, arm), seeds in arms.items():
        rows, fast = list(seeds.values()), arms.get((age, "fast"), {})
        ends = {seed: value for seed, row in seeds.items() if (value := end(row)) is not None}
        pairs = [(ends[seed], end(fast[seed])) for seed in ends if seed in fast and arm != "fast"]
        clipped = [values(rows, f"policy/clip_frac_{side}") for side in ("low", "high")]
        cells = [
            str(age),
            arm,
            f"{sum(row['outcome'] == 'finished' for row in rows)} of {len(rows)}",
            shown([row["before"] for row in rows if row["before"] is not None]),
            with_interval(list(ends.values())),
            with_interval([mine - other for mine, other in pairs if other is not None], "+"),
            shown(values(rows, "reward/correct", LAST)),
            shown(values(rows, "sampler/logprob_diff")),
            shown(values(rows, "sampler/logprob_diff_max"), max),
            shown(values(rows, "sampler/is_ess")),
            shown(values(rows, "policy/ratio_max"), max),
            shown(values(rows, "policy/ratio_min"), min),
            shown([low + high for low, high in zip(*clipped, strict=False)]),
            shown(values(rows, "policy/entropy", LAST)),
            shown(values(rows, "optim/grad_norm")),
            shown(values(rows, "optim/grad_norm"), max),
            shown([row["seconds_per_step"] for row in rows if row["seconds_per_step"] is not None]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(arms: Rows, picture: Path) -> None:
    """Training accuracy by staleness (mean and range of seeds), held-out accuracy, the sampler's difference."""
    ages = sorted({age for age, _ in arms})
    figure, axes = pyplot.subplots(
        1, len(ages) + 2, figsize=(4 * (len(ages) + 2), 3.6), layout="constrained"
    )
    *learning, heldout, difference = axes
    for place, ((age, arm), seeds) in enumerate(arms.items()):
        style, rows = {"color": f"C{ARMS.index(arm)}"}, list(seeds.values())
        axis = learning[ages.index(age)]
        plot_curves(axis, rows, "reward/correct", arm, style)
        axis.set(title=f"staleness {age}", xlabel="step", ylabel="correct, of sampled answers")
        dashes = {**style, "linestyle": STYLES[ages.index(age) % len(STYLES)]}
        plot_curves(difference, rows, "sampler/logprob_diff", f"{arm}, {age}", dashes)
        ends = [value for row in rows if (value := end(row)) is not None]
        if ends:
            half = interval(ends)[1] if len(ends) > 1 else 0.0
            heldout.errorbar([place], [statistics.fmean(ends)], [half], fmt="o", capsize=4, **style)
            heldout.plot([place] * len(ends), ends, "x", markersize=4, **style)
    heldout.set(title="held out, greedy: seeds, mean, 95% interval", ylim=(-0.02, 1.02))
    heldout.set_xticks(range(len(arms)), [f"{arm}\n{age}" for age, arm in arms], fontsize=7)
    difference.set(title="sampler/logprob_diff", xlabel="step", ylabel="nats per token")
    difference.set_yscale("symlog", linthresh=1e-4)
    for axis in (*learning, difference):
        if axis.get_lines():
            axis.legend(frameon=False, fontsize=7)
    figure.savefig(picture, format="png", dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def plot_curves(
    axis: Any, rows: list[dict[str, Any]], name: str, label: str, style: dict[str, Any]
) -> None:
    """Means over five steps and the seeds that have them; a run that stopped early counts up to there."""
    length = max((len(row["curves"][name]) for row in rows), default=0)
    points = []
    for step in range(length):
        windows = [
            row["curves"][name][max(0, step - 4) : step + 1] for row in rows if step < row["steps"]
        ]
        known = [[value for value in window if value is not None] for window in windows]
        means = [statistics.fmean(window) for window in known if window]
        if means:
            points.append((step + 1, statistics.fmean(means), min(means), max(means)))
    if points:
        steps, middle, low, high = zip(*points, strict=True)
        axis.plot(steps, middle, label=label, linewidth=1.4, **style)
        axis.fill_between(steps, low, high, color=style["color"], alpha=0.12)


def report(file: Path, picture: Path) -> None:
    found = json.loads(file.read_text())
    arms = by_arm(found["runs"])
    print(
        f"{found['model']}, {found['gpu'] or 'CPU'}, torch {found['torch']}, {found['jobs']} at a time"
    )
    print(", ".join(f"{name} {value}" for name, value in found["settings"].items()) + "\n")
    print(table(arms))
    print(
        "logprob_diff: rounding in fast, rounding and age in corrected, 0 by construction in exact"
    )
    for row in found["runs"]:
        if row["outcome"] != "finished":
            print(
                f"{row['arm']}, staleness {row['staleness']}, seed {row['seed']}: {row['outcome']} after "
                f"{row['steps']} steps: {row['message']}"
            )
    draw(arms, picture)
    print(f"drew {picture}")
