"""One JSON, tables and plots from the results of bench/gsm8k/run.py.

    python bench/gsm8k/report.py OUT [--write]      # --write: bench/results/DATE-gsm8k.json and docs/results/gsm8k*.png

What the study must show is in `verdict`: our seconds to TRL's final accuracy as a share of TRL's, seed by seed; whether
accuracies at equal steps agree within the seeds' interval; and which rows end above SFT beyond the 95% intervals.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from pathlib import Path
from typing import Any

from settings import RL, SEEDED, SEEDS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ACCURACY = "eval/reward/mean"
T_95 = {2: 12.706, 3: 4.303}  # Student's t, two-sided, by number of seeds


def gather(out: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}


def seconds_to(points: list[dict[str, float]], target: float) -> float | None:
    """Seconds of training until the accuracy is first reached, between two points by a straight line."""
    before = None
    for point in points:
        if point[ACCURACY] >= target:
            if before is None or point[ACCURACY] == before[ACCURACY]:
                return point["seconds"]
            part = (target - before[ACCURACY]) / (point[ACCURACY] - before[ACCURACY])
            return before["seconds"] + part * (point["seconds"] - before["seconds"])
        before = point
    return None


def interval(values: list[float]) -> dict[str, Any]:
    """Mean over seeds with its 95% interval."""
    half = T_95[len(values)] * statistics.stdev(values) / len(values) ** 0.5 if len(values) in T_95 else None
    return {"mean": statistics.fmean(values), "half_width": half, "values": values}


def verdict(found: dict[str, Any]) -> dict[str, Any]:
    shares = {}
    for seed in SEEDS:
        ours, theirs = found.get(f"grpo-{seed}"), found.get(f"trl_grpo-{seed}")
        if ours and theirs and theirs["points"]:
            reached = seconds_to(ours["points"], theirs["points"][-1][ACCURACY])
            shares[seed] = None if reached is None else reached / theirs["points"][-1]["seconds"]
    ends: dict[str, Any] = {}
    for stage in SEEDED:
        tests = [found[f"{stage}-{seed}"]["test"] for seed in SEEDS if f"{stage}-{seed}" in found]
        kinds = [name for name in tests[0] if isinstance(tests[0][name], dict)] if tests else []
        ends[stage] = {kind: interval([test[kind]["value"] for test in tests]) for kind in kinds}
    start = found.get("sft", {}).get("test", {})
    above = [
        stage for stage in RL
        if start and ends[stage] and all(
            found[f"{stage}-{seed}"]["test"][kind]["low"] > start[kind]["high"]
            for seed in SEEDS if f"{stage}-{seed}" in found
            for kind in ends[stage] if kind != "greedy"
        )
    ]  # fmt: skip
    return {"seconds_to_trl_of_trl": shares, "ends": ends, "above_sft_by_samples": above}


def plot(found: dict[str, Any], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_step, by_time) = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
    for number, stage in enumerate(SEEDED):
        for seed in SEEDS:
            points = found.get(f"{stage}-{seed}", {}).get("points", [])
            label = stage.replace("trl_grpo", "TRL's GRPO") if seed == SEEDS[0] else None
            style = {"color": f"C{number}", "marker": ".", "label": label}
            for axis, unit in ((by_step, "step"), (by_time, "seconds")):
                axis.plot([each[unit] for each in points], [each[ACCURACY] for each in points], **style)
                axis.set_xlabel(unit)
    by_step.set_ylabel("held-out accuracy, greedy")
    by_step.legend()
    figure.tight_layout()
    figure.savefig(folder / "gsm8k.png", dpi=120)
    pyplot.close(figure)
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4))
    for axis, stage in zip(axes, ("sft", "dpo"), strict=True):
        for name, label in ((stage, "ours"), (f"trl_{stage}", "TRL")):
            rows = [row for row in found.get(name, {}).get("steps", []) if "loss/total" in row]
            axis.plot([row["step"] for row in rows], [row["loss/total"] for row in rows], label=label, alpha=0.7)
        axis.set(title=stage, xlabel="step", ylabel="loss")
        axis.legend()
    figure.tight_layout()
    figure.savefig(folder / "gsm8k-losses.png", dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    found = gather(given.out)
    result = verdict(found)
    print(json.dumps(result, indent=1))
    today = datetime.date.today().isoformat()
    if given.write:
        record = {"study": "gsm8k", "date": today, "command": __doc__.split("\n\n")[1].strip(), **result}
        path = ROOT / "bench/results" / f"{today}-gsm8k.json"
        path.write_text(json.dumps({**record, "results": found}, indent=1) + "\n")
    plot(found, ROOT / "docs/results" if given.write else given.out)


if __name__ == "__main__":
    main()
