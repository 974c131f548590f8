"""DQN on CartPole-v1 to a mean return of 475, five seeds.

    python bench/classic_dqn.py [--first-seed N] [--figure FILE.png]

Writes a dated JSON with hardware, command and seeds to bench/results/. Each run is single-threaded, one at a time. The
final weights are judged on 100 fresh episodes; no checkpoint is picked.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import dataclasses
import datetime
import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from hardware import hardware

from ascent.classic import dqn
from ascent.classic.curves import plot_learning
from ascent.classic.result import Result, evaluate

RESULTS = Path(__file__).resolve().parent / "results"
SEEDS = 5
FRESH = 1_000_000
"""First seed of the evaluation episodes; no training run gets near it."""
MARK = 475.0


def measure(seed: int, settings: dqn.Settings) -> tuple[Result, dict[str, Any]]:
    """Train once; the run, and the final policy's mean return on 100 fresh episodes."""
    cpu = time.process_time()
    result = dqn.train("CartPole-v1", settings, seed=seed)
    cpu = time.process_time() - cpu
    final = evaluate(result.policy, "CartPole-v1", 100, FRESH + 1_000 * seed)
    return result, {
        "seed": seed,
        "final": float(np.mean(final)),
        "worst_episode": float(min(final)),
        "episodes": len(result.returns),
        "last_100_training": float(np.mean(result.returns[-100:])),
        "seconds": result.seconds,
        "cpu_seconds": cpu,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--figure", type=Path, help="also draw the learning curves to this .png file"
    )
    parser.add_argument(
        "--first-seed", type=int, default=0, help="5 gives runs that no setting was chosen on"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    today, settings = datetime.date.today().isoformat(), dqn.Settings()
    results, runs = [], []
    first, option = (
        given.first_seed,
        f" --first-seed {given.first_seed}" if given.first_seed else "",
    )
    path = RESULTS / f"{today}-classic-dqn{f'-from-{first}' if first else ''}.json"
    for seed in range(first, first + SEEDS):
        result, row = measure(seed, settings)
        results.append(result)
        runs.append(row)
        print(row, flush=True)
        found = {
            "study": "dqn",
            "date": today,
            "command": "python bench/classic_dqn.py" + option,
            "seeds": list(range(first, seed + 1)),
            "hardware": hardware(),
            "threads": 1,
            "versions": {
                "torch": torch.__version__,
                "gymnasium": gymnasium.__version__,
                "numpy": np.__version__,
            },
            "env": "CartPole-v1",
            "settings": dataclasses.asdict(settings),
            "mark": MARK,
            "reached": sum(run["final"] >= MARK for run in runs),
            "of": len(runs),
            "runs": runs,
        }
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
    if given.figure:
        plot_learning({"DQN": results}, given.figure, title="CartPole-v1", mark=MARK)
    print(
        f"reached {found['reached']} of {found['of']}; wrote {path.relative_to(RESULTS.parent.parent)}"
    )


if __name__ == "__main__":
    main()
