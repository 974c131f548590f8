"""RLHF on tiny models, five seeds, one CPU thread a cell: what follows a reward model, what that costs, how it fails.

    python bench/rlhf.py [ppo] [grpo] [overdone] [tax] [--jobs N] [--first-seed N] [--seeds N] [--work FOLDER]
    python bench/rlhf.py --draw bench/results/DATE-rlhf-overdone.json

ppo: win rate over imitation by the true preference, after PPO on a reward model; KL to the start. grpo: the same with
GRPO and no critic. overdone: proxy and truth at the checkpoints of PPO with KL in the reward and without, also as a
picture. tax: accuracy on another task, with its text mixed into PPO and without. Writes dated JSON with hardware,
command and seeds to bench/results/ (or --results); tests/end_to_end/preferring.py is what runs. What PPO and GRPO take
in time and memory: bench/rlhf_cost.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import argparse  # noqa: E402
import datetime  # noqa: E402
import json  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Iterator, Mapping, Sequence  # noqa: E402
from concurrent.futures import ProcessPoolExecutor, as_completed  # noqa: E402
from dataclasses import asdict  # noqa: E402
from multiprocessing import get_context  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
import transformers  # noqa: E402
from hardware import hardware  # noqa: E402
from learning import summary, table  # noqa: E402

from tests.end_to_end import preferring  # noqa: E402

RESULTS = ROOT / "bench" / "results"
PICTURE = ROOT / "docs" / "results" / "rlhf-overdone.png"
# The longest first, so that none of them is left alone at the end.
STUDIES: dict[str, tuple[Callable[[Path, int], Mapping[str, Any]], Any]] = {
    "overdone": (preferring.overdone, preferring.OVERDONE),
    "tax": (preferring.taxed, preferring.TAXED),
    "ppo": (lambda root, seed: preferring.followed(root, seed, "ppo"), preferring.PPO),
    "grpo": (lambda root, seed: preferring.followed(root, seed, "grpo"), preferring.GRPO),
}


def run_cell(study: str, seed: int, root: Path) -> dict[str, Any]:
    cpu, wall = time.process_time(), time.perf_counter()
    found = STUDIES[study][0](root, seed)
    spent = {"cpu_seconds": time.process_time() - cpu, "seconds": time.perf_counter() - wall}
    return {"algorithm": study, "seed": seed, **found, **spent}


def finished(cells: Sequence[tuple[str, int]], root: Path, jobs: int) -> Iterator[dict[str, Any]]:
    """Every cell as it ends. A cell that fails stops nothing: what it raised stands in place of its figures."""
    with ProcessPoolExecutor(
        jobs, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        running = {pool.submit(run_cell, study, seed, root): (study, seed) for study, seed in cells}
        for each in as_completed(running):
            study, seed = running[each]
            error = each.exception()
            yield (
                each.result()
                if error is None
                else {"algorithm": study, "seed": seed, "failed": repr(error)}
            )


def record(study: str, runs: Sequence[dict[str, Any]], command: str) -> dict[str, Any]:
    return {
        "study": f"rlhf-{study}",
        "date": datetime.date.today().isoformat(),
        "command": command,
        "seeds": [run["seed"] for run in runs],
        "hardware": hardware(),
        "threads": 1,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "prompts": preferring.PROMPTS,
        "settings": asdict(STUDIES[study][1]),
        "summary": summary(list(runs)),
        "runs": list(runs),
    }


def measure(given: argparse.Namespace, root: Path) -> int:
    """All cells; what is known so far is kept after each. How many failed."""
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    command = f"python bench/rlhf.py {' '.join(given.studies)} --first-seed {seeds.start} --seeds {len(seeds)}"
    command += f" --jobs {given.jobs}" + " --work FOLDER" * (given.work is not None)
    known: dict[str, list[dict[str, Any]]] = {study: [] for study in given.studies}
    failed = 0
    for run in finished(
        [(study, seed) for study in given.studies for seed in seeds], root, given.jobs
    ):
        study = run["algorithm"]
        known[study] = sorted([*known[study], run], key=lambda each: each["seed"])
        failed += "failed" in run
        figures = " ".join(
            f"{key} {value:.3f}" for key, value in run.items() if isinstance(value, float)
        )
        print(study, run["seed"], run.get("failed", figures), flush=True)
        path = given.results / f"{datetime.date.today().isoformat()}-rlhf-{study}.json"
        path.write_text(json.dumps(record(study, known[study], command), indent=1) + "\n")
    for runs in known.values():
        print(table(summary(runs)))
    return failed


def draw(file: Path, picture: Path) -> None:
    """Proxy and truth against the step, with KL in the reward and without: every seed thin, their mean thick."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    runs = [run for run in json.loads(file.read_text())["runs"] if "failed" not in run]
    figure = Figure(figsize=(8.4, 3.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    parts = ("proxy", "truth", "kl")
    names = (
        "reward model's score (the proxy)",
        "true utility (at most 1.25)",
        "KL to the start, nats an answer",
    )
    for axes, part, name in zip(figure.subplots(1, 3), parts, names, strict=True):
        for way, color in (("without", "#b3392f"), ("with", "#3465a4")):
            place = preferring.CURVE.index(part)
            curves = [[point[place] for point in run[f"{way}_curve"]] for run in runs]
            steps = [point[0] for point in runs[0][f"{way}_curve"]]
            for curve in curves:
                axes.plot(steps, curve, color=color, linewidth=0.8, alpha=0.5)
            mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
            axes.plot(steps, mean, color=color, linewidth=2, label=f"{way} KL in the reward")
        axes.set_ylabel(name, fontsize=9)
        axes.set_xlabel("step of PPO", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
    title = f"thin: a seed each, thick: the mean of all {len(runs)}"
    lines = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        *lines,
        loc="outside upper center",
        ncols=2,
        fontsize=8,
        title=title,
        title_fontsize=8,
        frameon=False,
    )
    figure.savefig(picture, format="png", metadata={"Software": None})
    print(f"drew {picture.name} from {len(runs)} runs")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("studies", nargs="*", help="which to run; all of them if none is named")
    parser.add_argument(
        "--jobs", type=int, default=1, help="cells at a time, each in a process with one thread"
    )
    parser.add_argument(
        "--first-seed", type=int, default=preferring.SEEDS.start, help="settings were chosen on 0"
    )
    parser.add_argument("--seeds", type=int, default=len(preferring.SEEDS))
    parser.add_argument(
        "--work", type=Path, help="where runs are kept; what is finished there is not trained again"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument(
        "--draw", type=Path, metavar="JSON", help="only draw the picture of this overdone study"
    )
    parser.add_argument("--picture", type=Path, default=PICTURE)
    given = parser.parse_args()
    unknown = [name for name in given.studies if name not in STUDIES]
    if unknown:
        parser.error(f"no study named {unknown[0]}; there are {', '.join(STUDIES)}")
    if given.jobs < 1:
        parser.error(f"--jobs {given.jobs}, but at least one cell must run at a time")
    given.studies = [name for name in STUDIES if name in (given.studies or STUDIES)]
    return given


def main() -> None:
    given = arguments()
    if given.draw is not None:
        draw(given.draw, given.picture)
        return
    with tempfile.TemporaryDirectory() as temporary:
        failed = measure(given, given.work or Path(temporary))
    sys.exit(f"{failed} cells failed" if failed else 0)


if __name__ == "__main__":
    main()
