"""Does `ascent diagnose` name the right cause? Runs that fail on purpose, and healthy ones, trained and diagnosed.

    python bench/diagnosis.py --work FOLDER [--set third] [--only NAME,NAME] [--seconds 500]

Trains what is not yet in FOLDER (about 10 minutes on one core for each set), diagnoses every run, prints a table and
writes dated JSON to bench/results/. Rules were written on the set `tuning`; the figures of docs/diagnosis.md are those
of the others. With --seconds it stops training after that time; the next call goes on.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import argparse
import contextlib
import datetime
import io
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import ascent  # noqa: E402
from ascent.config.load import nest_keys  # noqa: E402
from ascent.diagnose.score_curve import fit_score  # noqa: E402
from ascent.engines.hf import HFSampler  # noqa: E402
from ascent.runs.curves import points  # noqa: E402
from ascent.runs.folder import read_run  # noqa: E402
from ascent.tasks.keyed_random import KeyedRandom  # noqa: E402
from bench.diagnosis_runs import SETS, Case, Corpus, Keys, cases  # noqa: E402
from bench.hardware import hardware  # noqa: E402

FORECAST_STEPS = 18  # of a run whose score is forecast


class TimeUp(Exception):
    """The time for training is over."""


def trainer(deadline: float) -> Any:
    def train(keys: Keys, folder: Path) -> Path:
        if not (folder / "outcome.json").is_file():
            if time.monotonic() > deadline:
                raise TimeUp
            begun = time.monotonic()
            with contextlib.redirect_stderr(io.StringIO()):
                try:
                    ascent.train(
                        nest_keys(dict(keys)), run=folder, progress=False, say=lambda line: None
                    )
                except Exception as error:
                    if not (folder / "outcome.json").is_file():
                        raise
                    print(f"{folder.name}: {error}"[:160])  # a run may fail: that is diagnosed, too
            print(f"{folder.name} {time.monotonic() - begun:.1f} s", flush=True)
        return folder

    return train


@contextlib.contextmanager
def noisy_sampler(scale: float) -> Iterator[None]:
    """The sampler reports log-probs that are not the trainer's, as an engine with other kernels would."""
    sample = HFSampler.sample

    def with_noise(self: HFSampler, requests: Any) -> Iterator[Any]:
        for each in sample(self, requests):
            noise = KeyedRandom("noise", each.prompt_id, each.sample)
            off = [value + scale * 2 * (noise.uniform() - 0.5) for value in each.logprobs]
            yield replace(each, logprobs=tuple(min(value, 0.0) for value in off))

    if scale:
        with mock.patch.object(HFSampler, "sample", with_noise):
            yield
    else:
        yield


def train_all(found: list[Case], work: Path, train: Any) -> None:
    for case in found:
        with noisy_sampler(case.noise):
            train(case.recipe, work / case.name)


def diagnose_all(found: list[Case], of: str, runs: Path) -> list[dict[str, Any]]:
    """What each trained run was diagnosed with, beside what was done to it."""
    rows = []
    for case in found:
        if not (runs / case.name / "outcome.json").is_file():
            continue
        said = ascent.diagnose_run(runs / case.name, write=False)
        right = said.cause == case.cause if case.cause else not said.failed
        findings = [{"cause": each.cause, "confidence": each.confidence} for each in said.findings]
        rows.append(
            {"set": of, "run": case.name, "cause": case.cause, "right": right, "findings": findings}
        )
    return rows


def score_forecasts(of: str, runs: Path) -> list[dict[str, Any]]:
    """The forecast of the share of right answers at a third of every run that sampled, and what it was in the end."""
    rows = []
    for path in sorted(each for each in runs.iterdir() if (each / "outcome.json").is_file()):
        curve = points(read_run(path).metrics, "reward/correct")
        curve = [(step, value) for step, value in curve if step >= 1]
        if len(curve) < FORECAST_STEPS or not all(0 <= value <= 1 for _, value in curve):
            continue
        end = curve[-1][0]
        last = [value for _, value in curve[-max(2, len(curve) // 10) :]]
        said = fit_score([each for each in curve if each[0] <= end / 3], end)
        truth = sum(last) / len(last)
        inside = None if said.low is None or said.high is None else said.low <= truth <= said.high
        rows.append(
            {
                "set": of,
                "run": path.name,
                "low": said.low,
                "high": said.high,
                "end": truth,
                "inside": inside,
            }
        )
    return rows


def print_table(rows: list[dict[str, Any]], forecasts: list[dict[str, Any]]) -> None:
    for name in dict.fromkeys(each["set"] for each in rows):
        mine = [each for each in rows if each["set"] == name]
        failing, healthy = (
            [each for each in mine if bool(each["cause"]) == kind] for kind in (True, False)
        )
        print(
            f"{name}: right cause first in {_count(failing)} failing runs, no alarm in {_count(healthy)} healthy"
        )
        for cause in sorted({each["cause"] for each in failing}):
            print(f"  {cause:28} {_count([each for each in failing if each['cause'] == cause])}")
        for each in mine:
            if not each["right"]:
                print(
                    f"  wrong: {each['run']}, {each['cause']}: {[one['cause'] for one in each['findings']]}"
                )
        given = [
            each["inside"]
            for each in forecasts
            if each["set"] == name and each["inside"] is not None
        ]
        total = sum(each["set"] == name for each in forecasts)
        print(
            f"  scores: {sum(given)} of {len(given)} intervals hold the end; {total - len(given)} were not given"
        )


def _count(rows: list[dict[str, Any]]) -> str:
    return f"{sum(each['right'] for each in rows)} of {len(rows)}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        help="where runs are kept; what is there is not trained again",
    )
    parser.add_argument(
        "--set", choices=SETS, action="append", help="this set only; all if not given"
    )
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=[], help="cases whose name begins so"
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="train for at most this long"
    )
    return parser.parse_args()


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    train = trainer(time.monotonic() + given.seconds)
    rows: list[dict[str, Any]] = []
    forecasts: list[dict[str, Any]] = []
    for name in given.set or SETS:
        work = given.work / name
        try:
            found = cases(Corpus(work, name, train))
            chosen = [
                each for each in found if not given.only or each.name.startswith(tuple(given.only))
            ]
            train_all(chosen, work / "runs", train)
        except TimeUp:
            sys.exit("the time is over; call again to go on")
        rows += diagnose_all(chosen, name, work / "runs")
        forecasts += score_forecasts(name, work / "runs")
    print_table(rows, forecasts)
    path = ROOT / "bench" / "results" / f"{datetime.date.today().isoformat()}-diagnosis.json"
    content = {
        "command": "python bench/diagnosis.py --work FOLDER",
        "hardware": hardware(),
        "runs": rows,
        "scores": forecasts,
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
