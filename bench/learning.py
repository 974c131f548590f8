"""Do the algorithms learn? Five studies on tiny models, five seeds each, one CPU thread.

    python bench/learning.py [sft] [reward] [preference] [talking] [rows] [--first-seed N] [--seeds N] [--work FOLDER]

sft: held-out accuracy before and after. reward: reward models against the Bayes rate, pairwise, K-wise and listwise on
equally many scored responses. preference: win rate over SFT by the true preference, with a control whose labels are a
coin's. talking: a maze walked in turns and differences that need a calculator, before and after rewards. rows:
every algorithm that learns from rollouts, 15 steps on `contrary`. Writes dated JSON with hardware, command and seeds to
bench/results/; tests/end_to_end/{studies,talking,policies}.py is what runs.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.end_to_end import policies, studies, talking  # noqa: E402

Cell = Callable[[Path, int], dict[str, float]]


def sft_cells() -> dict[str, Cell]:
    return {"sft": studies.study_sft}


def reward_cells() -> dict[str, Cell]:
    return {name: lambda root, seed, n=name: studies.study_reward(root, seed, n) for name in studies.REWARD_MODELS}


def preference_cells() -> dict[str, Cell]:
    return {name: lambda root, seed, n=name: studies.study_preference(root, seed, n) for name in studies.PREFERENCES}


def talking_cells() -> dict[str, Cell]:
    both = (talking.MAZE, talking.DIFFERENCES)
    return {each.name: lambda root, seed, n=each: talking.study(n, root, seed) for each in both}


def row_cells() -> dict[str, Cell]:
    return {name: lambda root, seed, n=name: policies.practise(root, n, seed) for name in policies.ROWS}


STUDIES: dict[str, tuple[Callable[[], dict[str, Cell]], Mapping[str, Any]]] = {
    "sft": (sft_cells, {"task": "sort_digits", "problems": studies.PROBLEMS, "sft": studies.SORT_SFT}),
    "reward": (
        reward_cells,
        {
            "task": "low_first (style's questions; the lower the first digit the better)",
            "strength": studies.STRENGTH,
            "pairs": studies.PAIRS,
            "sft": studies.STYLE_SFT,
            **studies.REWARD_MODELS,
        },
    ),
    "preference": (
        preference_cells,
        {"task": "style", "prompts": studies.PROBLEMS, "sft": studies.STYLE_SFT, **studies.PREFERENCES},
    ),
    "rows": (row_cells, {name: asdict(each) for name, each in policies.ROWS.items()}),
    "talking": (talking_cells, {each.name: asdict(each) for each in (talking.MAZE, talking.DIFFERENCES)}),
}


def measure(cells: Mapping[str, Cell], seeds: range, root: Path, keep: Callable[[list[dict[str, Any]]], None]) -> None:
    """Every cell for every seed; what is known so far is kept after each."""
    runs: list[dict[str, Any]] = []
    for seed in seeds:
        for name, cell in cells.items():
            cpu, wall = time.process_time(), time.perf_counter()
            found = cell(root, seed)
            spent = {"cpu_seconds": time.process_time() - cpu, "seconds": time.perf_counter() - wall}
            runs.append({"algorithm": name, "seed": seed, **found, **spent})
            print(name, seed, " ".join(f"{key} {value:.3f}" for key, value in runs[-1].items() if _number(value)))
            sys.stdout.flush()
            keep(runs)


def summary(runs: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean, smallest and largest over the seeds, by algorithm and number."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in dict.fromkeys(run["algorithm"] for run in runs):
        mine = [run for run in runs if run["algorithm"] == name]
        keys = [key for key, value in mine[0].items() if _number(value)]
        values = {key: [run[key] for run in mine] for key in keys}
        found[name] = {
            key: {"mean": statistics.mean(each), "min": min(each), "max": max(each)} for key, each in values.items()
        }
    return found


def _number(value: object) -> bool:
    return isinstance(value, float)


def table(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    lines = []
    for name, numbers in found.items():
        lines.append(name)
        for key, each in numbers.items():
            lines.append(f"  {key:18} mean {each['mean']:8.3f}   min {each['min']:8.3f}   max {each['max']:8.3f}")
    return "\n".join(lines)


def hardware() -> dict[str, Any]:
    listed = subprocess.run(["lscpu"], capture_output=True, text=True).stdout if sys.platform == "linux" else ""
    named = [line.split(":", 1)[1].strip() for line in listed.splitlines() if line.startswith("Model name")]
    return {"cpu": named[0] if named else platform.processor(), "cores": os.cpu_count(), "machine": platform.machine()}


def record(study: str, seeds: range, runs: list[dict[str, Any]], *, kept: bool) -> dict[str, Any]:
    """`kept`: run with --work, so SFT models of an earlier study may have been used again (and cost nothing here)."""
    command = (
        f"python bench/learning.py {study} --first-seed {seeds.start} --seeds {len(seeds)}" + " --work FOLDER" * kept
    )
    settings = STUDIES[study][1]
    return {
        "study": study,
        "date": datetime.date.today().isoformat(),
        "command": command,
        "seeds": sorted({run["seed"] for run in runs}),
        "hardware": hardware(),
        "threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "settings": {key: asdict(each) if isinstance(each, studies.Recipe) else each for key, each in settings.items()},
        "summary": summary(runs),
        "runs": runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", help="which to run; all of them if none is named")
    parser.add_argument("--first-seed", type=int, default=studies.SEEDS[0], help="0 is the one settings were chosen on")
    parser.add_argument("--seeds", type=int, default=len(studies.SEEDS))
    parser.add_argument("--work", type=Path, help="where runs are kept; SFT models found there are used again")
    given = parser.parse_args()
    unknown = [name for name in given.studies if name not in STUDIES]
    if unknown:
        parser.error(f"no study named {unknown[0]}; there are {', '.join(STUDIES)}")
    torch.set_num_threads(1)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    with tempfile.TemporaryDirectory() as temporary:
        for study in given.studies or STUDIES:
            path = ROOT / "bench" / "results" / f"{datetime.date.today().isoformat()}-learning-{study}.json"
            path.parent.mkdir(exist_ok=True)
            root = given.work or Path(temporary)

            def keep(runs: list[dict[str, Any]], study: str = study, path: Path = path) -> None:
                path.write_text(json.dumps(record(study, seeds, runs, kept=given.work is not None), indent=1) + "\n")

            measure(STUDIES[study][0](), seeds, root, keep)
            print(table(json.loads(path.read_text())["summary"]))
            print(f"wrote {path.relative_to(ROOT)}", flush=True)


if __name__ == "__main__":
    main()
