"""The page of bench/step_gpu.py: merges its files into one record, prints the table and draws seconds by phase.

    python bench/step_gpu_report.py --out bench/results/DATE-step-gpu.json FILE...

The record has every measured step and, for each kind of work, the ratios of the sides. The figure is
docs/results/gpu.png.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

PICTURE = Path(__file__).parents[1] / "docs" / "results" / "gpu.png"
SIDES = {"grpo": "Ascent", "exact": "Ascent, exact", "ppo": "Ascent, PPO", "trl": "TRL"}
PHASES = {
    "engine": "sampling",
    "prepare": "preparing",
    "update": "update",
    "rest": "rest (of TRL all but sampling)",
}


def merge(files: list[Path]) -> dict[str, Any]:
    records = [json.loads(path.read_text()) for path in files]
    found = {
        f"{record['size']} {key}": row
        for record in records
        for key, row in record["results"].items()
    }
    same = {key: records[0][key] for key in ("study", "date", "gpu", "torch", "warm")}
    return {**same, "results": found, "ratios": ratios(found)}


def ratios(found: dict[str, Any]) -> dict[str, float]:
    """Of whole steps: TRL to GRPO, PPO and exact arithmetic to GRPO; and the first step to the third."""
    made = {}
    for key, row in found.items():
        size, work, side = key.split()
        ours = found.get(f"{size} {work} grpo")
        if ours and side != "grpo":
            made[f"{work} {side}/grpo"] = row["step"] / ours["step"]
            made[f"{work} engine {side}/grpo"] = row["engine"] / ours["engine"]
        if len(row["steps"]) > 2:
            made[f"{work} {side} first/third"] = row["first"] / row["steps"][2]["step"]
        if "tokens/needed" in row:
            made[f"{size} {work} {side} tokens run/needed"] = (
                row["tokens/run"] / row["tokens/needed"]
            )
            made[f"{size} {work} {side} sampled tokens/s"] = row["tokens/trained"] / row["engine"]
            made[f"{size} {work} {side} updated tokens/s"] = row["tokens/needed"] / row["update"]
    return made


def table(record: dict[str, Any]) -> str:
    lines = [
        "| model, work | side | step | sampling | preparing | update | first step | peak memory |",
        "|" + "---|" * 8,
    ]
    for key, row in record["results"].items():
        size, work, side = key.split()
        phases = [
            f"{row[name]:.2f} s" if name in row else "-" for name in ("engine", "prepare", "update")
        ]
        step, first = f"{row['step']:.2f} s", f"{row['first']:.1f} s"
        cells = [f"{size} {work}", SIDES[side], step, *phases, first, f"{row['peak_gb']:.1f} GiB"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(record: dict[str, Any]) -> None:
    from matplotlib import pyplot

    rows = {key: row for key, row in record["results"].items() if key.startswith("1.5b")}
    labels = [f"{key.split()[1]}: {SIDES[key.split()[2]]}" for key in rows]
    figure, axes = pyplot.subplots(figsize=(8, 0.45 * len(rows) + 1.2), layout="constrained")
    start = [0.0] * len(rows)
    for name, label in PHASES.items():
        widths = [
            row["step"] - begun if name == "rest" else row.get(name, 0.0)
            for row, begun in zip(rows.values(), start, strict=True)
        ]
        axes.barh(
            labels, widths, left=start, label=label, color="lightgray" if name == "rest" else None
        )
        start = [begun + width for begun, width in zip(start, widths, strict=True)]
    for place, row in enumerate(rows.values()):
        axes.text(row["step"], place, f" {row['step']:.1f} s", va="center")
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set(xlabel="seconds of a step")
    axes.legend(frameon=False)
    figure.savefig(PICTURE, format="png", dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    record = merge(given.files)
    given.out.write_text(json.dumps(record, indent=1) + "\n")
    plot(record)
    print(table(record))
    print("\n".join(f"{name}: {value:.3f}" for name, value in record["ratios"].items()))


if __name__ == "__main__":
    main()
