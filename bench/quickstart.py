"""The quick start, measured: accuracy on held-out lists before and after, the control, and the time that a user waits.

    python bench/quickstart.py [--seeds 0,1,2,3,4] [--rlhf] [--write]

Every seed is a process of its own, one after the other: `ascent quickstart --seed N` into a new folder, from its start
to its end, imports included. Times mean something on an idle machine of two cores; the load at the start of each run is
in the result. With --write the runs are added to bench/results/DATE-quickstart.json, and the curves of seed 0 drawn in
docs/results.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hardware import hardware

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs" / "results"


def one(folder: Path, seed: int, rlhf: bool) -> dict[str, Any]:
    """In this process: the result of the function behind the command."""
    from ascent.api.quickstart import quickstart

    found = quickstart(rlhf=rlhf, run=folder, seed=seed, progress=False, say=lambda line: None)
    score = f"greedy/{found.part}"
    models = [
        {
            "name": each.name,
            "seconds": each.seconds,
            **vars(each.metrics[score]),
            "metrics": {name: value.value for name, value in each.metrics.items()},
        }
        for each in found.models
    ]
    improved = [[a.prompt.messages[-1].content, a.text, b.text] for a, b in found.improved()[:5]]
    return {
        "models": models,
        "improved": improved,
        "steps": len(found.rewards),
        "curves": str(found.trained),
    }


def measure(folder: Path, seed: int, rlhf: bool) -> dict[str, Any]:
    """One process, timed from outside."""
    load, start = os.getloadavg()[0], time.perf_counter()
    words = [
        sys.executable,
        __file__,
        "--one",
        str(folder),
        "--seeds",
        str(seed),
        *(["--rlhf"] if rlhf else []),
    ]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"seed": seed, "seconds": time.perf_counter() - start, "load": load, **found}


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean, minimum and maximum of each model's accuracy over seeds, one run of each; and the times of all runs."""
    by_seed = {run["seed"]: run for run in runs}
    found: dict[str, Any] = {}
    for place, model in enumerate(runs[0]["models"]):
        values = [run["models"][place]["value"] for run in by_seed.values()]
        found[model["name"]] = {
            "mean": statistics.fmean(values),
            "min": min(values),
            "max": max(values),
        }
    seconds = [run["seconds"] for run in runs]
    return {
        "accuracy": found,
        "seconds": {"median": statistics.median(seconds), "max": max(seconds)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--rlhf", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", type=Path, help="into this folder, in this process")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    if given.one:
        print(json.dumps(one(given.one, seeds[0], given.rlhf)))
        return
    import torch
    import transformers

    name = "quickstart-rlhf" if given.rlhf else "quickstart"
    path = HERE / "results" / f"{datetime.date.today().isoformat()}-{name}.json"
    before = json.loads(path.read_text())["runs"] if path.exists() else []
    with tempfile.TemporaryDirectory() as root:
        for number, seed in enumerate(seeds):
            run = measure(Path(root) / str(number), seed, given.rlhf)
            curves = Path(run.pop("curves")) / "curves.png"
            before.append(run)
            print(
                json.dumps({key: value for key, value in run.items() if key != "improved"}),
                flush=True,
            )
            record = {
                "study": name,
                "date": datetime.date.today().isoformat(),
                "hardware": hardware(),
                "command": f"python bench/quickstart.py{' --rlhf' * given.rlhf} --write",
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                **summarize(before),
                "runs": before,
            }
            if given.write:
                path.write_text(json.dumps(record, indent=1) + "\n")
                if seed == 0 and not given.rlhf:
                    shutil.copy(curves, DOCS / "quickstart.png")


if __name__ == "__main__":
    main()
