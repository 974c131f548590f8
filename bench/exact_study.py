"""Does it matter that sampler and trainer round differently? GRPO with fast, corrected and exact arithmetic.

    python bench/exact_study.py run --model FOLDER --work FOLDER --out FILE [--seconds 500] [--jobs 3]
    python bench/exact_study.py report FILE [--picture docs/results/exact.png]
    python bench/exact_study.py run --model tiny:llama --steps 2 --prompts 2 --heldout 4 ...   # a trial on a CPU

SmolLM2-135M-Instruct learns to sort three or four numbers (examples/sort_numbers.py: a verifier, chat template,
held-out sets of numbers). Written before any result was seen:

    arms       fast: the trainer computes the old log-probs again, and the sampler's rounding is ignored.
               corrected: fast, with cells.rollout_correction.use=token_truncate. exact: model.arithmetic=exact.
    staleness  4 and 1, the ends of what is asked for. 0 is left out for time (--staleness 0,1,4 has it): there the
               correction accounts for rounding alone, here for rounding and age. So `fast` against `exact`, which treat
               age alike, shows rounding; `corrected` against `fast` shows rounding and age together.
    seeds      1, 2, 3. The arms of a seed share model, prompts, their order, and the sampling noise.
    order      seed by seed, in each the staleness 4 before 1, in each all arms: a study that is cut off is balanced.
    settings   60 steps of 64 prompts x 8 completions of at most 32 tokens, four updates a step (240 updates; rollouts
               are 4 to 19 updates old), temperature 1, row rlvr, learning rate 1e-5, five steps of warmup. With 60
               steps of one update, not stale, the model went from .09 to .75 (docs/results/sort_numbers.md).
    time       estimated: that run took .5 s a step on an H200. With 15 s to start and save, a run alone takes 45 s,
               exact perhaps 60. Three at a time share the GPU (half busy) and hide each other's starts: 60 to 70 s for
               three, 6 to 7 minutes for all 18, and a minute for the first compilation of the exact kernels.

sampler/logprob_diff is rounding in `fast`, rounding and age in `corrected`, and 0 by construction in `exact`, where
recorded log-probs are the old ones and stale rollouts are not checked: bench/exact.py parity measures that they agree.
Three runs share the GPU, so seconds per step are comparable within this study only; bench/step_gpu.py measures cost.
A finished run is a row of FILE, and the same command continues with those that are missing; a run that was cut off
starts again. With --seconds nothing begins that would end later, judged by the slowest run so far. A run that stops
with an error, or is not done after --limit, is a row too (--retry runs these again).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "sort_numbers.py"
ARMS: Mapping[str, Mapping[str, Any]] = {
    "fast": {"model.arithmetic": "fast"},
    "corrected": {"model.arithmetic": "fast", "cells.rollout_correction.use": "token_truncate"},
    "exact": {"model.arithmetic": "exact"},
}
ACCURACY = "eval/reward/correct"  # greedy, held out
METRICS = (
    "reward/correct",
    "sampler/logprob_diff",
    "sampler/logprob_diff_max",
    "sampler/is_weight",
    "sampler/is_ess",
    "sampler/is_capped_frac",
    "sampler/staleness",
    "policy/ratio_max",
    "policy/ratio_min",
    "policy/clip_frac_low",
    "policy/clip_frac_high",
    "policy/approx_kl",
    "policy/entropy",
    "optim/grad_norm",
    "completion/length_mean",
    "completion/truncated_frac",
    "time/sample",
    "time/prepare",
    "time/update",
    "time/step",
)
WARM = 5  # first steps, which are not timed


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all runs share. Each is an option of the command."""

    steps: int = 60
    prompts: int = 64
    group: int = 8
    tokens: int = 32
    minibatches: int = 4
    learning_rate: float = 1e-5
    warmup: int = 5
    heldout: int = 256
    evaluations: int = 4
    dtype: str = "bfloat16"


class Spec(NamedTuple):
    arm: str
    staleness: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm}-{self.staleness}-{self.seed}"


def order(arms: Iterable[str], staleness: Iterable[int], seeds: Iterable[int]) -> list[Spec]:
    return [
        Spec(arm, age, seed)
        for seed in seeds
        for age in sorted(staleness, reverse=True)
        for arm in arms
    ]


def recipe(settings: Settings, spec: Spec, model: str, data: Path) -> dict[str, Any]:
    return {
        "algorithm": "rlvr",
        "seed": spec.seed,
        "model.policy": model,
        "model.dtype": settings.dtype,
        "data.train": str(data / "train.jsonl"),
        "data.evaluate": str(data / "heldout.jsonl"),
        "rewards": [{"use": f"{EXAMPLE}:in_order"}],
        "rollouts.max_staleness": spec.staleness,
        "rollouts.prompts_per_step": settings.prompts,
        "rollouts.group_size": settings.group,
        "rollouts.max_new_tokens": settings.tokens,
        "rollouts.temperature": 1.0,
        "update.epochs": 1,
        "update.minibatches": settings.minibatches,
        "update.learning_rate": settings.learning_rate,
        "update.warmup_steps": min(settings.warmup, settings.steps - 1),
        "run.steps": settings.steps,
        "run.evaluate_every": max(1, settings.steps // settings.evaluations),
        "run.save_every": settings.steps,
        **ARMS[spec.arm],
    }


def write_data(folder: Path, heldout: int) -> None:
    sys.path.insert(0, str(EXAMPLE.parent))
    from sort_numbers import prompts, write

    folder.mkdir(parents=True, exist_ok=True)
    seen: set[tuple[int, ...]] = set()
    write(folder / "heldout.jsonl", prompts(heldout, 1, seen))
    write(folder / "train.jsonl", prompts(4096, 0, seen))


def train_one(given: argparse.Namespace, settings: Settings) -> None:
    """One run in this process; its row goes to WORK/NAME.json, whatever its outcome."""
    import ascent
    from ascent.runs.folder import read_run

    spec, began = Spec(given.arm, given.age, given.seed), time.time()
    folder, message, rows = given.work / spec.name, "", []
    shutil.rmtree(folder, ignore_errors=True)
    keys = recipe(settings, spec, given.model, given.work / "data")
    try:
        outcome = ascent.train(keys, run=folder, progress=False).state
    except Exception as error:  # how a run ends is what the study asks
        traceback.print_exc()
        outcome, message = (
            "failed",
            f"{type(error).__name__}: {error}".replace(str(given.work), "WORK"),
        )
    with contextlib.suppress(OSError, ValueError):  # an error before the first step leaves no run
        rows = read_run(folder).metrics
    row = {
        **spec._asdict(),
        "outcome": outcome,
        "message": message,
        **summarize(rows),
        "wall": time.time() - began,
    }
    replace_file(given.work / f"{spec.name}.json", json.dumps(row))
    shutil.rmtree(folder, ignore_errors=True)  # with the optimizer's state it is two gigabytes


def summarize(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Curves by metric, one number per step, None where a step has none (no group with a signal, or no number)."""
    steps = [row for row in rows if "time/step" in row]
    points = [(int(row["step"]), row[ACCURACY]) for row in rows if ACCURACY in row]
    curves = {name: [_rounded(row.get(name)) for row in steps] for name in METRICS}
    timed = [row["time/step"] for row in (steps[WARM:] or steps)]
    return {
        "steps": len(steps),
        "points": points,
        "curves": curves,
        "before": next((value for step, value in points if step == 0), None),
        "after": points[-1][1] if points and points[-1][0] else None,
        "seconds_per_step": statistics.median(timed) if timed else None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def replace_file(path: Path, text: str) -> None:
    """Never half a file, also if the machine is taken away."""
    fresh = path.with_name(f".{path.name}.writing")
    fresh.write_text(text + "\n")
    fresh.replace(path)


def start(spec: Spec, given: argparse.Namespace) -> dict[str, Any]:
    """One run in a process of its own; its row, also of one that crashed or took too long."""
    result, log = given.work / f"{spec.name}.json", given.work / f"{spec.name}.log"
    result.unlink(missing_ok=True)
    words = [
        sys.executable,
        __file__,
        "one",
        *sys.argv[2:],
        "--arm",
        spec.arm,
        "--age",
        str(spec.staleness),
    ]
    began, message = time.time(), ""
    threads = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // given.jobs))
    }  # or they wait for each other
    with log.open("w") as output:
        try:
            status = subprocess.run(
                [*words, "--seed", str(spec.seed)],
                stdout=output,
                stderr=output,
                timeout=given.limit,
                env=threads | os.environ,
            ).returncode
            outcome = f"exit status {status}"
        except subprocess.TimeoutExpired:
            outcome = f"not done after {given.limit:.0f} s"
    if result.exists():
        row: dict[str, Any] = json.loads(result.read_text())
        return row
    message = (log.read_text(errors="replace").strip().splitlines() or [""])[-1].replace(
        str(given.work), "WORK"
    )
    row = {
        **spec._asdict(),
        "outcome": outcome,
        "message": message,
        **summarize([]),
        "wall": time.time() - began,
    }
    return row


def known_rows(path: Path, settings: Settings) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    if found["settings"] != dataclasses.asdict(settings):
        sys.exit(
            f"{path} has the settings {found['settings']}, not {dataclasses.asdict(settings)}; use another --out"
        )
    rows: list[dict[str, Any]] = found["runs"]
    return rows


def run(given: argparse.Namespace, settings: Settings) -> None:
    import torch

    from ascent.models.exact import device_problem

    on_gpu, began = torch.cuda.is_available(), time.monotonic()
    problem = device_problem(torch.device("cuda" if on_gpu else "cpu"))
    if problem:
        print(f"the arm exact is left out, since it needs an H100 or H200: {problem}", flush=True)
    arms = [name for name in ARMS if name != "exact" or not problem]
    rows = [
        row
        for row in known_rows(given.out, settings)
        if not (given.retry and row["outcome"] != "finished")
    ]
    done = {Spec(row["arm"], row["staleness"], row["seed"]) for row in rows}
    queue = order(arms, given.staleness, given.seeds)
    write_data(given.work / "data", settings.heldout)
    machine = {"gpu": torch.cuda.get_device_name() if on_gpu else None, "torch": torch.__version__}
    head = {
        "study": "exact",
        "date": datetime.date.today().isoformat(),
        **machine,
        "jobs": given.jobs,
    }
    head |= {"model": Path(given.model).name, "settings": dataclasses.asdict(settings)}
    places = {spec: place for place, spec in enumerate(queue)}

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        rows.sort(
            key=lambda each: places.get(Spec(each["arm"], each["staleness"], each["seed"]), -1)
        )
        replace_file(given.out, json.dumps({**head, "runs": rows}))

    todo = [spec for spec in queue if spec not in done]
    left = run_all(todo, given.jobs, began + given.seconds, lambda spec: start(spec, given), keep)
    print(
        f"{len(queue) - left} of {len(queue)} runs are in {given.out}; {left} are left for the next call",
        flush=True,
    )


def run_all(
    todo: list[Spec],
    jobs: int,
    deadline: float,
    work: Callable[[Spec], dict[str, Any]],
    keep: Callable[[dict[str, Any]], None],
) -> int:
    """How many were left, because they would have ended after the deadline."""
    slowest, left = 0.0, 0

    def attempt(spec: Spec) -> dict[str, Any] | None:
        return None if time.monotonic() + slowest > deadline else work(spec)

    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(attempt, spec): spec for spec in todo}
        for each in as_completed(running):
            row = each.result()
            if row is None:
                left += 1
                continue
            slowest = max(slowest, row["wall"])
            keep(row)
            print(
                running[each].name,
                row["outcome"],
                row["message"][:200],
                f"{row['before']} -> {row['after']},",
                f"{row['steps']} steps, {row['wall']:.0f} s",
                flush=True,
            )
    return left


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command")
    for name in ("run", "one"):  # `one` is what `run` starts for each run
        command = commands.add_parser(name)
        command.add_argument("--model", required=True)
        command.add_argument(
            "--work", type=lambda text: Path(text).resolve(), required=True, help="runs and logs"
        )
        command.add_argument("--out", type=Path, required=True, help="the JSON of results")
        command.add_argument("--staleness", type=numbers, default=[1, 4])
        command.add_argument("--seeds", type=numbers, default=[1, 2, 3])
        command.add_argument("--jobs", type=int, default=3, help="runs at a time")
        command.add_argument(
            "--seconds", type=float, default=math.inf, help="begin nothing that would end later"
        )
        command.add_argument(
            "--limit", type=float, default=240, help="seconds after which a run is ended"
        )
        command.add_argument("--retry", action="store_true", help="run again what did not finish")
        for field in dataclasses.fields(Settings):
            option = f"--{field.name.replace('_', '-')}"
            command.add_argument(option, type=type(field.default), default=field.default)
    commands.choices["one"].add_argument("--arm", choices=ARMS, required=True)
    commands.choices["one"].add_argument("--age", type=int, required=True)
    commands.choices["one"].add_argument("--seed", type=int, required=True)
    command = commands.add_parser("report")
    command.add_argument("file", type=Path)
    command.add_argument("--picture", type=Path, default=ROOT / "docs" / "results" / "exact.png")
    return parser


def main() -> None:
    parser = arguments()
    given = parser.parse_args()
    if given.command is None:
        parser.print_help()
    elif given.command == "report":
        from exact_report import report

        report(given.file, given.picture)
    else:
        settings = Settings(
            **{field.name: getattr(given, field.name) for field in dataclasses.fields(Settings)}
        )
        {"run": run, "one": train_one}[given.command](given, settings)


if __name__ == "__main__":
    main()
