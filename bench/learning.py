"""Do the algorithms learn? Nine studies on tiny models, five seeds each, one CPU thread a cell.

    python bench/learning.py [sft] [reward] [preference] [talking] [rows] [sort] [sanity] [tasks] [staleness]
        [--only CELL,CELL] [--jobs N] [--first-seed N] [--seeds N] [--work FOLDER]

sft: held-out accuracy before and after. reward: reward models against the Bayes rate, pairwise, K-wise and listwise on
equally many scored responses. preference: win rate over SFT by the true preference, with a control whose labels are a
coin's. talking: a maze walked in turns and differences that need a calculator, before and after rewards. rows:
every algorithm that learns from rollouts, 9, 12 or 15 steps on `contrary`, and grpo_process 25 on `running_sum`. sort:
five of them on lists longer than any that was shown, each again with a coin for a reward, and imitation alone. sanity:
training prompts that can all be learnt. tasks: countdown, tagged sums with three rewards at once, and summaries with a
reward model, every part before and after, with coins for rewards beside them; and the recipe rlhf_iterated, round by
round. staleness: GRPO on lists to sort, with synchronous rollouts and with rollouts one and two versions old. Writes
dated JSON with hardware, command and seeds to bench/results/;
tests/end_to_end/{studies,talking,policies,tasks,staleness}.py is what runs.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import argparse
import datetime
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import transformers
from hardware import hardware

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ascent.config.load import read_recipe  # noqa: E402
from tests.end_to_end import policies, staleness, studies, talking, tasks  # noqa: E402

Cell = Callable[[Path, int], Mapping[str, Any]]


def sft_cells() -> dict[str, Cell]:
    return {"sft": studies.study_sft}


def reward_cells() -> dict[str, Cell]:
    return {
        name: lambda root, seed, n=name: studies.study_reward(root, seed, n)
        for name in studies.REWARD_MODELS
    }


def preference_cells() -> dict[str, Cell]:
    names = (*studies.PREFERENCES, *studies.MORE_PREFERENCES)
    return {
        name: lambda root, seed, n=name: studies.study_preference(root, seed, n) for name in names
    }


def talking_cells() -> dict[str, Cell]:
    both = (talking.MAZE, talking.DIFFERENCES)
    return {each.name: lambda root, seed, n=each: talking.study(n, root, seed) for each in both}


def row_cells() -> dict[str, Cell]:
    return {
        name: lambda root, seed, n=name: policies.practise(root, n, seed) for name in policies.ROWS
    }


def sort_cells() -> dict[str, Cell]:
    rows: dict[str, Cell] = {
        name: lambda root, seed, n=name: policies.sort(root, n, seed) for name in policies.SORT
    }
    coins: dict[str, Cell] = {
        f"{name}-shuffled": lambda root, seed, n=name: policies.sort(root, n, seed, shuffled=True)
        for name in policies.SORT
    }
    return {**rows, "imitation": policies.sort_control, **coins}


def sanity_cells() -> dict[str, Cell]:
    return {
        name: lambda root, seed, n=name: policies.sanity(root, n, seed) for name in policies.SANITY
    }


def task_cells() -> dict[str, Cell]:
    rows: dict[str, Cell] = {
        n: lambda root, seed, n=n: tasks.practised(root, n, seed) for n in tasks.PRACTISED
    }
    coins: dict[str, Cell] = {
        f"{name}-shuffled": lambda root, seed, n=name: tasks.practised(root, n, seed, shuffled=True)
        for name in tasks.SHUFFLED
    }
    return {
        "digest": tasks.summarized,
        tasks.ROUNDS: tasks.iterated,
        **rows,
        **coins,
    }  # the longest first, so that none is left alone at the end


def staleness_cells() -> dict[str, Cell]:
    return {
        name: lambda root, seed, n=name: staleness.study(root, n, seed) for name in staleness.ARMS
    }


STUDIES: dict[str, tuple[Callable[[], dict[str, Cell]], Mapping[str, Any]]] = {
    "sft": (
        sft_cells,
        {"task": "sort_digits", "problems": studies.PROBLEMS, "sft": studies.SORT_SFT},
    ),
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
        {
            "task": "style",
            "prompts": studies.PROBLEMS,
            "sft": studies.STYLE_SFT,
            **studies.PREFERENCES,
            **studies.MORE_PREFERENCES,
        },
    ),
    "rows": (row_cells, {name: asdict(each) for name, each in policies.ROWS.items()}),
    "sort": (
        sort_cells,
        {
            "sorting": asdict(policies.SORTING),
            **{name: asdict(each) for name, each in policies.SORT.items()},
        },
    ),
    "sanity": (
        sanity_cells,
        {
            "sorting": asdict(policies.SORTING),
            "solvable": asdict(policies.SOLVABLE),
            **{name: asdict(each) for name, each in policies.SANITY.items()},
        },
    ),
    "tasks": (
        task_cells,
        {
            "digest": asdict(tasks.DIGESTED),
            tasks.ROUNDS: read_recipe(tasks.ROUNDS),
            **{name: asdict(each) for name, each in tasks.PRACTISED.items()},
        },
    ),
    "staleness": (
        staleness_cells,
        {
            "sorting": asdict(policies.SORTING),
            "practice": asdict(staleness.PRACTICE),
            **staleness.ARMS,
        },
    ),
    "talking": (
        talking_cells,
        {each.name: asdict(each) for each in (talking.MAZE, talking.DIFFERENCES)},
    ),
}


def run_cell(study: str, name: str, seed: int, root: Path) -> dict[str, Any]:
    cpu, wall = time.process_time(), time.perf_counter()
    found = STUDIES[study][0]()[name](root, seed)
    spent = {"cpu_seconds": time.process_time() - cpu, "seconds": time.perf_counter() - wall}
    return {"algorithm": name, "seed": seed, **found, **spent}


def finished(
    study: str, cells: Sequence[tuple[str, int]], root: Path, jobs: int
) -> Iterator[dict[str, Any]]:
    """Every cell as it ends. A cell that fails stops nothing: what it raised stands in place of its figures."""
    one = torch.set_num_threads
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=one, initargs=(1,)) as pool:
        running = {
            pool.submit(run_cell, study, name, seed, root): (name, seed) for name, seed in cells
        }
        for each in as_completed(running):
            name, seed = running[each]
            error = each.exception()
            words = repr(error).replace(
                str(root), "FOLDER"
            )  # results are committed: no path of a machine
            yield (
                each.result()
                if error is None
                else {"algorithm": name, "seed": seed, "failed": words}
            )


def measure(
    study: str,
    names: Sequence[str],
    seeds: range,
    root: Path,
    jobs: int,
    keep: Callable[[list[dict[str, Any]]], None],
) -> None:
    """Every cell for every seed; what is known so far is kept after each, in an order that does not depend on luck."""
    places = {
        (name, seed): place
        for place, (seed, name) in enumerate((s, n) for s in seeds for n in names)
    }
    runs: list[dict[str, Any]] = []
    # Seeds vary fastest: the starts that the cells of a seed share are then trained side by side.
    for run in finished(study, [(name, seed) for name in names for seed in seeds], root, jobs):
        runs = sorted([*runs, run], key=lambda each: places[each["algorithm"], each["seed"]])
        figures = " ".join(f"{key} {value:.3f}" for key, value in run.items() if _number(value))
        print(run["algorithm"], run["seed"], run.get("failed", figures), flush=True)
        keep(runs)


def summary(runs: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean, smallest and largest over the seeds, by algorithm and number."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    done = [run for run in runs if "failed" not in run]
    for name in dict.fromkeys(run["algorithm"] for run in done):
        mine = [run for run in done if run["algorithm"] == name]
        keys = [key for key, value in mine[0].items() if _number(value)]
        values = {key: [run[key] for run in mine] for key in keys}
        found[name] = {
            key: {"mean": statistics.mean(each), "min": min(each), "max": max(each)}
            for key, each in values.items()
        }
    return found


def _number(value: object) -> bool:
    return isinstance(value, float)


def table(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    lines = []
    for name, numbers in found.items():
        lines.append(name)
        for key, each in numbers.items():
            lines.append(
                f"  {key:18} mean {each['mean']:8.3f}   min {each['min']:8.3f}   max {each['max']:8.3f}"
            )
    return "\n".join(lines)


def record(
    study: str, seeds: range, runs: list[dict[str, Any]], given: argparse.Namespace
) -> dict[str, Any]:
    """With --work, SFT models of an earlier study may have been used again (and cost nothing here)."""
    command = f"python bench/learning.py {study} --first-seed {seeds.start} --seeds {len(seeds)} --jobs {given.jobs}"
    command += f" --only {','.join(given.only)}" * bool(given.only) + " --work FOLDER" * (
        given.work is not None
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
        "settings": {
            key: asdict(each) if isinstance(each, studies.Recipe) else each
            for key, each in settings.items()
        },
        "summary": summary(runs),
        "runs": runs,
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("studies", nargs="*", help="which to run; all of them if none is named")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=[], help="these cells of the studies"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="cells at a time, each in a process with one thread"
    )
    parser.add_argument(
        "--first-seed",
        type=int,
        default=studies.SEEDS[0],
        help="0 is the one settings were chosen on",
    )
    parser.add_argument("--seeds", type=int, default=len(studies.SEEDS))
    parser.add_argument(
        "--work", type=Path, help="where runs are kept; what is finished there is not trained again"
    )
    given = parser.parse_args()
    unknown = [name for name in given.studies if name not in STUDIES]
    if unknown:
        parser.error(f"no study named {unknown[0]}; there are {', '.join(STUDIES)}")
    given.studies = given.studies or list(STUDIES)
    cells = {name for study in given.studies for name in STUDIES[study][0]()}
    absent = [name for name in given.only if name not in cells]
    if absent:
        parser.error(
            f"--only {absent[0]}, but {', '.join(given.studies)} has {', '.join(sorted(cells))}"
        )
    if given.jobs < 1:
        parser.error(f"--jobs {given.jobs}, but at least one cell must run at a time")
    return given


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        for study in given.studies:
            today = datetime.date.today().isoformat()
            part = "-part" if given.only else ""  # never in place of the whole study's figures
            path = ROOT / "bench" / "results" / f"{today}-learning-{study}{part}.json"
            path.parent.mkdir(exist_ok=True)
            names = [name for name in STUDIES[study][0]() if name in (given.only or [name])]

            def keep(runs: list[dict[str, Any]], study: str = study, path: Path = path) -> None:
                path.write_text(json.dumps(record(study, seeds, runs, given), indent=1) + "\n")

            if names:
                measure(study, names, seeds, given.work or Path(temporary), given.jobs, keep)
                found = json.loads(path.read_text())
                failed += sum("failed" in run for run in found["runs"])
                print(table(found["summary"]))
                print(f"wrote {path.relative_to(ROOT)}", flush=True)
    sys.exit(f"{failed} cells failed" if failed else 0)


if __name__ == "__main__":
    main()
