"""Stale rollouts against synchronous ones: a table and a figure of the study of staleness.

    python bench/learning.py staleness && python bench/staleness.py

Reads the newest result of that study. Arms are compared seed by seed, because all arms of a seed share their start:
the mean difference from synchronous training, with a 95% interval (Student's t over the seeds).
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "results" / "staleness.png"
SYNCHRONOUS = "synchronous"
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # by the number of seeds


def interval(values: list[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95% interval."""
    return statistics.mean(values), T_95[len(values)] * statistics.stdev(values) / math.sqrt(
        len(values)
    )


def by_arm(runs: list[dict[str, Any]]) -> dict[str, dict[int, dict[str, Any]]]:
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for each in runs:
        found.setdefault(each["algorithm"], {})[each["seed"]] = each
    return found


def table(arms: dict[str, dict[int, dict[str, Any]]]) -> str:
    lines = [
        "| rollouts | held-out | difference | training, last 20 steps | difference |",
        "|---|---|---|---|---|",
    ]
    for name, seeds in arms.items():
        cells = [name]
        for key in ("after", "correct"):
            differences = [each[key] - arms[SYNCHRONOUS][seed][key] for seed, each in seeds.items()]
            mean, half = interval(differences)
            cells.append(f"{statistics.mean(each[key] for each in seeds.values()):.3f}")
            cells.append(
                ""
                if name == SYNCHRONOUS
                else f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})"
            )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(arms: dict[str, dict[int, dict[str, Any]]]) -> None:
    """Training accuracy, the mean over seeds and a window of 5 steps; the band is synchronous training's range."""
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name, seeds in arms.items():
        curves = [smooth(each["curve"]) for each in seeds.values()]
        steps = range(1, len(curves[0]) + 1)
        means = [statistics.mean(each) for each in zip(*curves, strict=True)]
        axes.plot(steps, means, "-" if "corrected" not in name else "--", label=name, linewidth=1.4)
        if name == SYNCHRONOUS:
            low, high = ([pick(each) for each in zip(*curves, strict=True)] for pick in (min, max))
            axes.fill_between(steps, low, high, alpha=0.15, linewidth=0)
    axes.set(xlabel="step", ylabel="correct, of sampled answers")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(PICTURE, format="png", dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def smooth(curve: list[float], window: int = 5) -> list[float]:
    return [statistics.mean(curve[max(0, end - window) : end]) for end in range(1, len(curve) + 1)]


def main() -> None:
    path = sorted((ROOT / "bench" / "results").glob("*-learning-staleness*.json"))[-1]
    arms = by_arm(json.loads(path.read_text())["runs"])
    print(table(arms))
    draw(arms)
    print(f"from {path.relative_to(ROOT)}; drew {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
