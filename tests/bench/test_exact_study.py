"""The study of exact arithmetic before it has a GPU: its order, recipes, rows and report."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ascent.api.train import plan_of
from ascent.metrics import find_metric

FOLDER = Path(__file__).parents[2] / "bench"
NAMES = ("exact_study", "exact_report", "staleness", "sort_numbers")
TOY = """
def in_order(rollout):
    if {fails}:
        raise ValueError("a reward that fails")
    return {{"correct": float(sum(map(ord, rollout.text)) % 2)}}
"""


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its modules, imported as the scripts import each other, and forgotten afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield importlib.import_module
    for name in NAMES:
        sys.modules.pop(name, None)


def test_a_study_that_is_cut_off_is_balanced(bench: Any) -> None:
    study = bench("exact_study")
    queue = study.order(study.ARMS, [1, 4], [1, 2, 3])
    assert len(set(queue)) == 18
    for first in range(0, 18, 3):
        block = queue[first : first + 3]
        assert [spec.arm for spec in block] == ["fast", "corrected", "exact"]
        assert len({(spec.staleness, spec.seed) for spec in block}) == 1
    assert [(spec.seed, spec.staleness) for spec in queue[::3]] == [
        (1, 4),
        (1, 1),
        (2, 4),
        (2, 1),
        (3, 4),
        (3, 1),
    ]


def test_arms_differ_in_arithmetic_and_correction_alone(bench: Any, tmp_path: Path) -> None:
    study = bench("exact_study")
    study.write_data(tmp_path, 8)
    plans = {}
    for arm in study.ARMS:
        keys = study.recipe(study.Settings(), study.Spec(arm, 4, 1), "tiny:llama", tmp_path)
        plans[arm] = plan_of(keys)
        assert set(keys) - set(
            study.recipe(study.Settings(), study.Spec("fast", 4, 1), "tiny:llama", tmp_path)
        ) <= {"cells.rollout_correction.use"}
    assert [plan.config.model.arithmetic for plan in plans.values()] == ["fast", "fast", "exact"]
    assert [plan.row.corrects_rollouts for plan in plans.values()] == [False, True, False]
    assert {plan.config.rollouts.max_staleness for plan in plans.values()} == {4}
    assert {plan.config.rollouts.temperature for plan in plans.values()} == {1.0}


def test_every_metric_of_the_study_exists(bench: Any) -> None:
    assert [name for name in bench("exact_study").METRICS if find_metric(name) is None] == []


def test_nothing_begins_that_would_end_after_the_deadline(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, now, kept = bench("exact_study"), [0.0], []
    monkeypatch.setattr(study.time, "monotonic", lambda: now[0])

    def work(spec: Any) -> dict[str, Any]:
        now[0] += 10
        return {
            **spec._asdict(),
            "outcome": "finished",
            "message": "",
            **study.summarize([]),
            "wall": 10.0,
        }

    for _ in range(3):  # as three calls, each with what the one before has left
        todo = study.order(study.ARMS, [1], [1])[len(kept) :]
        left = study.run_all(todo, 1, now[0] + 5, work, kept.append)
        assert left == len(todo) - 1
    assert [row["arm"] for row in kept] == ["fast", "corrected", "exact"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_is_a_row_whether_it_finishes_or_not(bench: Any, fails: bool, tmp_path: Path) -> None:
    study = bench("exact_study")
    study.write_data(tmp_path / "data", 4)
    study.EXAMPLE = tmp_path / "toy.py"
    study.EXAMPLE.write_text(TOY.format(fails=fails))
    settings = study.Settings(steps=2, prompts=4, group=4, tokens=6, heldout=4, dtype="float32")
    study.train_one(
        argparse.Namespace(arm="corrected", age=1, seed=2, model="tiny:llama", work=tmp_path),
        settings,
    )
    row = json.loads((tmp_path / "corrected-1-2.json").read_text())
    assert (row["arm"], row["staleness"], row["seed"]) == ("corrected", 1, 2)
    assert not (tmp_path / "corrected-1-2").exists()
    if fails:
        assert row["outcome"] == "failed" and "a reward that fails" in row["message"]
        return
    assert row["outcome"] == "finished" and [step for step, _ in row["points"]] == [0, 1, 2]
    assert {name for name, curve in row["curves"].items() if None in curve} <= {
        "sampler/is_capped_frac"
    }
    assert row["curves"]["sampler/staleness"] == [0.0, 1.0]  # the first step has nothing older
    assert row["seconds_per_step"] > 0


def test_the_report_compares_seed_by_seed(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, report = bench("exact_study"), bench("exact_report")
    assert tuple(study.ARMS) == report.ARMS
    runs = []
    for arm, shift in (("fast", 0.0), ("exact", 0.125)):
        for seed in (1, 2, 3):
            metrics = [{"step": 0.0, study.ACCURACY: 0.25}]
            metrics += [
                {
                    "step": 1.0,
                    study.ACCURACY: shift + seed / 8,
                    "time/step": 2.0,
                    "reward/correct": 0.5,
                }
            ]
            runs.append(
                {
                    "arm": arm,
                    "staleness": 4,
                    "seed": seed,
                    "outcome": "finished",
                    "message": "",
                    "wall": 1.0,
                    **study.summarize(metrics),
                }
            )
    runs.append(
        {**runs[-1], "arm": "corrected", "outcome": "failed", "message": "the ratio is not 1"}
    )
    head = {"model": "toy", "gpu": None, "torch": "2", "jobs": 1, "settings": {"steps": 1}}
    (tmp_path / "exact.json").write_text(json.dumps({**head, "runs": runs}))
    report.report(tmp_path / "exact.json", tmp_path / "exact.png")
    text = capsys.readouterr().out
    lines = {
        line.split(" | ")[1]: line.split(" | ")
        for line in text.splitlines()
        if line.startswith("| 4")
    }
    # The mean of .125, .25, .375 is .25; their deviation is .125, and 4.303 * .125 / sqrt(3) is .3105.
    assert lines["fast"][3:6] == ["0.25", "0.250 (-0.061 to 0.561)", "-"]
    assert lines["exact"][5] == "+0.125 (+0.125 to +0.125)"
    assert (
        lines["corrected"][2] == "0 of 1"
        and "seed 3: failed after 1 steps: the ratio is not 1" in text
    )
    assert (tmp_path / "exact.png").read_bytes()[:4] == b"\x89PNG"
