"""Train a recipe with every combination of some settings: `ascent.sweep`."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent import __version__
from ascent.api.compare_runs import RunComparison, compare_runs, short_keys
from ascent.api.objects import as_keys
from ascent.api.stages import StageStopped, stage
from ascent.api.train import Overrides, Recipe, Say, override_strings, plan_of
from ascent.config.changes import flatten_mapping
from ascent.config.load import nest_keys, parse_overrides
from ascent.config.show import as_yaml
from ascent.config.validate import validate
from ascent.config.yaml_text import read as read_yaml
from ascent.plan.resolve import Plan, resolve
from ascent.runs.folder import CONFIG, INPUTS, read_run, state_of
from ascent.runs.processes import Job, run_jobs
from ascent.setup.data import epochs_of
from ascent.setup.early_checks import check_names

PLOT = "sweep.png"
BY_SIGNAL = "stopped by SIG"  # how the reason begins that ascent.api.drive records
MAX_NAME = 120  # letters of a folder's name; file systems allow 255 bytes
OPENING, CLOSING, QUOTES = "[{(", "]})", "\"'"


@dataclass(frozen=True)
class SweepResult:
    """`comparison` is that of `ascent.compare_runs` over the runs of `folder`, None where fewer than two logged
    anything. `failures` says for each run that failed why."""

    folder: str
    comparison: RunComparison | None
    failures: Mapping[str, str]


@dataclass(frozen=True)
class SweepRun:
    """One combination: its overrides, its plan and its folder."""

    settings: Mapping[str, str]
    plan: Plan
    folder: Path


def sweep(
    recipe: Recipe,
    overrides: Overrides = (),
    *,
    run: str | Path | None = None,
    jobs: int = 1,
    metrics: Sequence[str] = (),
    progress: bool = True,
    say: Say = print,
) -> SweepResult:
    """Train a recipe with every combination of the given values, then compare the runs.

    The same call again continues: finished runs are kept, unfinished ones are resumed, failed ones are tried again.

    recipe: the name of a shipped recipe or of an algorithm, a .yaml file, or a mapping of keys, with objects as in
        `train` where jobs is 1.
    overrides: "KEY=A,B,C" tries each value, "KEY=A" sets one. In a mapping, a list holds the values to try.
    run: the folder of all runs; by default runs/RECIPE-sweep.
    jobs: how many runs at the same time, each in a process of its own; GPUs are shared out between them.
    metrics: what to compare, as in `compare_runs`.
    progress: show progress on standard error.
    say: receives notes, one line each.

    Returns a `SweepResult`. The curves of all runs are in sweep.png of the folder. Raises StageStopped on a signal.

        found = ascent.sweep("sft", {"model": "tiny:llama", "update.learning_rate": [1e-3, 1e-4], "seed": [1, 2, 3]})
        found.comparison.groups[0].scores["eval/loss/total"].last
    """
    if jobs < 1:
        raise ValueError(f"jobs={jobs}, but at least 1 run must be trained at a time")
    name = (
        Path(recipe).stem if isinstance(recipe, str | Path) else "python"
    )  # not numbered: the same call continues
    folder = Path("runs", f"{name}-sweep") if run is None else Path(run)
    runs = plan_runs(recipe, overrides, folder)
    objects = runs[0].plan.objects
    if objects and jobs > 1:
        raise ValueError(
            f"jobs={jobs} trains in other processes, which cannot get Python objects ({', '.join(objects)}); "
            "use jobs=1, or give names and files"
        )
    say(f"{len(runs)} runs in {folder}")
    header = f"# Resolved by ascent {__version__} from {name}; itself a recipe.\n"
    if jobs == 1:
        failures = _train_in_turn(
            runs, header, _objects(recipe) if objects else {}, progress=progress, say=say
        )
    else:
        failures = _train_side_by_side(runs, header, jobs, say=say)
    trained = [each.folder for each in runs if (each.folder / CONFIG).is_file()]
    found = compare_runs(trained, metrics=metrics, plot=folder / PLOT) if len(trained) > 1 else None
    return SweepResult(str(folder), found, failures)


def plan_runs(recipe: Recipe, overrides: Overrides, folder: Path) -> list[SweepRun]:
    """Every combination with its plan, checked before anything is trained."""
    given = _values(overrides)
    grid = {key: values for key, values in given.items() if len(values) > 1}
    if not grid:
        raise ValueError(
            "a sweep tries several values; give at least one key several: update.learning_rate=1e-5,1e-6"
        )
    runs = []
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        fixed = {key: each[0] for key, each in given.items()}
        plan = plan_of(recipe, [f"{key}={value}" for key, value in {**fixed, **settings}.items()])
        runs.append(SweepRun(settings, plan, folder / run_name(settings)))
    names = [each.folder for each in runs]
    for each in runs:
        if names.count(each.folder) > 1:
            raise ValueError(
                f"two combinations would both be called {each.folder.name}; their values differ too little"
            )
        _check_settings(each)
        check_names(each.plan)
    return runs


def split_values(text: str) -> list[str]:
    """'1,[2,3],"a,b"' -> ['1', '[2,3]', '"a,b"']: commas inside brackets and quotes belong to a value."""
    values, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in QUOTES:
            quote = letter
        depth += (letter in OPENING) - (letter in CLOSING) if not quote else 0
        if letter == "," and not depth and not quote:
            values.append("")
        else:
            values[-1] += letter
    return [value.strip() for value in values]


def run_name(settings: Mapping[str, str]) -> str:
    """'learning_rate=1e-3-seed=1': a folder's name."""
    text = "-".join(f"{key}={value}" for key, value in short_keys(settings).items())
    name = re.sub(r"[^\w.=+-]+", "_", text).strip("_")
    return (
        name
        if len(name) <= MAX_NAME
        else f"{name[:MAX_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    )


def _values(overrides: Overrides) -> dict[str, list[str]]:
    """The values of each key, as YAML."""
    if isinstance(overrides, Mapping):
        lists = {
            key: each if isinstance(each, list | tuple) else [each]
            for key, each in overrides.items()
        }
        found = {
            key: [
                text.partition("=")[2] for each in values for text in override_strings({key: each})
            ]
            for key, values in lists.items()
        }
    else:
        pairs = [
            (key, split_values(values))
            for key, _, values in (text.partition("=") for text in overrides)
        ]
        equals = ["=" if "=" in text else "" for text in overrides]
        firsts = [
            f"{key}{sign}{values[0]}" for (key, values), sign in zip(pairs, equals, strict=True)
        ]
        for each in (
            firsts,
            *([f"{key}={value}"] for key, values in pairs for value in values[1:]),
        ):
            parse_overrides(each)  # KEY=VALUE, each key once
        found = {key.strip(): values for key, values in pairs}
    for key, values in found.items():
        if len(set(values)) < len(values) or (len(values) > 1 and "" in values) or not values:
            raise ValueError(
                f"{key}={','.join(values)} must name each value once, with commas between"
            )
    return found


def _check_settings(each: SweepRun) -> None:
    """ValueError where the folder holds a run of other settings: it would be taken for this one."""
    path = each.folder / CONFIG
    if not path.is_file():
        return
    was, now = (
        dict(flatten_mapping(read_yaml(text, str(path))))
        for text in (path.read_text(), as_yaml(each.plan.config))
    )
    if now.get("data.epochs") is not None:  # the run's steps were computed from its epochs
        inputs = each.folder / INPUTS
        origins = json.loads(inputs.read_text()).get("origins", {}) if inputs.is_file() else {}
        was |= {
            "run.steps": now.get("run.steps"),
            "data.epochs": epochs_of(origins) or now["data.epochs"],
        }
    differing = {key: now.get(key) for key in was | now if was.get(key) != now.get(key)}
    if differing.get("model.arithmetic") == "auto":
        del differing["model.arithmetic"]  # decided when the run starts
    for key, value in differing.items():
        raise ValueError(
            f"{each.folder} was trained with {key}={was.get(key)}, and this sweep has {value}; give it another folder "
            "with --run"
        )


def _objects(recipe: Recipe) -> dict[str, Any]:
    """What a run that is resumed needs again."""
    tree = nest_keys(recipe) if isinstance(recipe, Mapping) else {}
    data = tree.get("data")
    parts = {"train": data} if not isinstance(data, Mapping) else data
    return as_keys(
        data=parts.get("train"),
        eval_data=parts.get("evaluate"),
        rewards=tree.get("rewards"),
        env=tree.get("env"),
    )


def _train_in_turn(
    runs: Sequence[SweepRun], header: str, given: Mapping[str, Any], *, progress: bool, say: Say
) -> dict[str, str]:
    failures = {}
    for number, each in enumerate(runs, 1):
        say(f"run {number} of {len(runs)}: {each.folder}")
        if _is_done(each.folder):
            say(f"{each.folder} is {state_of(each.folder)}")
            continue
        try:
            stage(each.plan, each.folder, say, progress=progress, header=header, given=given)
        except StageStopped:
            if not _is_done(each.folder):
                raise
        except Exception as error:  # the other runs may still succeed
            failures[str(each.folder)] = f"{type(error).__name__}: {error}"
            say(f"{each.folder} failed ({failures[str(each.folder)]}); the sweep continues")
    return failures


def _is_done(folder: Path) -> bool:
    """Finished, or stopped for a reason of its own, such as run.max_ref_kl; what a signal stopped is resumed."""
    if not (folder / CONFIG).is_file():
        return False
    run = read_run(folder)
    return run.state == "finished" or (
        run.state == "stopped" and not run.message.startswith(BY_SIGNAL)
    )


def _train_side_by_side(
    runs: Sequence[SweepRun], header: str, jobs: int, *, say: Say
) -> dict[str, str]:
    failures: dict[str, str] = {}
    left = [each for each in runs if not _is_done(each.folder)]
    command = [sys.executable, "-c", "from ascent.api.sweep import train_job; train_job()"]
    work = [
        Job(
            str(each.folder),
            command,
            _job_text(each, header),
            each.folder.parent / f"{each.folder.name}.log",
        )
        for each in left
    ]

    def ended(job: Job, status: int) -> None:
        if status:
            killed = f"killed by {signal.Signals(-status).name}; " if status < 0 else ""
            failures[job.name] = killed + _last_line(job.log)
        word = (
            f"failed ({failures[job.name]}); the sweep continues"
            if status
            else state_of(Path(job.name))
        )
        say(f"{job.name} {word}")

    slots = _slots(jobs, say)
    say(
        f"{len(work)} of {len(runs)} runs are left, {jobs} at a time; the output of each is in FOLDER.log"
    )
    received = run_jobs(work, slots, ended=ended)
    if received:
        raise StageStopped(f"stopped by {received}")
    return failures


def _job_text(each: SweepRun, header: str) -> str:
    return json.dumps(
        {
            "folder": str(each.folder),
            "config": as_yaml(each.plan.config),
            "header": header,
            "command": sys.argv,
        }
    )


def train_job() -> None:
    """Train or resume the run that standard input describes; a process of a sweep runs this."""
    job = json.load(sys.stdin)
    sys.argv = job["command"]  # the run folder records it
    plan = resolve(validate(read_yaml(job["config"], job["folder"])))
    try:
        stage(plan, Path(job["folder"]), print, header=job["header"])
    except StageStopped as stopped:
        print(stopped)


def _last_line(log: Path) -> str:
    lines = [
        line
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    return lines[-1].strip() if lines else "no output"


def _slots(jobs: int, say: Say) -> list[dict[str, str]]:
    """The environment of each job that runs at the same time: a GPU of its own, or a share of the CPU's cores."""
    import torch

    count = torch.cuda.device_count()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = chosen.split(",")[:count] if chosen else [str(number) for number in range(count)]
    if 0 < count < jobs:
        say(
            f"{jobs} runs at a time share {count} GPU{'s' if count > 1 else ''}; each needs its part of the memory"
        )
    if names:
        return [{**os.environ, "CUDA_VISIBLE_DEVICES": names[slot % count]} for slot in range(jobs)]
    threads = str(max(1, torch.get_num_threads() // jobs))
    return [{**os.environ, "OMP_NUM_THREADS": threads}] * jobs
