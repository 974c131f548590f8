"""Settings that differ, last and best scores, intervals over prompts and over seeds, the plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import ascent
from ascent.feedback.win_rate import wilson
from ascent.maths.estimates import estimate, student_interval
from ascent.runs.folder import RunFolder

CORRECT = "eval/reward/correct"


def make_run(
    path: Path,
    config: str,
    metrics: Mapping[int, Mapping[str, float]],
    answers: Mapping[int, Sequence[tuple[float | None, float]]] | None = None,
    of: int | None = None,
) -> str:
    """A finished run with these metrics, and answers as (correct, reward)."""
    with RunFolder.create(path, config, {}, say=lambda text: None) as folder:
        for step, values in metrics.items():
            folder.log(step, values)
        for step, found in (answers or {}).items():
            records = [
                {"correct": right, "reward": reward, "parts": {"r/digits": reward}}
                for right, reward in found
            ]
            folder.log_answers(step, records, of=of or len(found))
        folder.finish("finished", max(metrics))
    return str(path)


def test_differing_settings_and_the_best_by_direction(tmp_path: Path) -> None:
    a = make_run(
        tmp_path / "a",
        "seed: 0\nupdate: {learning_rate: 0.1, epochs: 1}\nrewards: [{use: x}]\nenv: null\n",
        {
            0: {CORRECT: 0.1, "eval/loss/total": 3.0},
            5: {CORRECT: 0.9, "eval/loss/total": 1.0},
            9: {CORRECT: 0.5, "eval/loss/total": 2.0},
        },
    )
    b = make_run(
        tmp_path / "b",
        "seed: 0\nupdate: {learning_rate: 0.2, epochs: 1}\nrewards: [{use: y}]\n",
        {9: {CORRECT: 0.25}},
    )
    found = ascent.compare_runs([a, b])
    assert found.settings == {"update.learning_rate": [0.1, 0.2], "rewards[0].use": ["x", "y"]}
    first = found.runs[0].scores
    assert (first[CORRECT].last.value, first[CORRECT].best.value, first[CORRECT].best.step) == (
        0.5,
        0.9,
        5,
    )
    assert (first["eval/loss/total"].best.value, first["eval/loss/total"].best.step) == (1.0, 5)
    assert first[CORRECT].curve == [(0, 0.1), (5, 0.9), (9, 0.5)]
    assert first[CORRECT].last.low is None  # no answers were logged
    assert "eval/loss/total" not in found.runs[1].scores
    assert found.larger_is_better == {CORRECT: True, "eval/loss/total": False}
    assert found.groups == found.runs
    json.dumps(found.as_dict())


def test_the_best_is_of_the_evaluation_that_the_last_is_of(tmp_path: Path) -> None:
    scores = {
        0: {CORRECT: 0.9},
        4: {CORRECT: 0.8, "loss/total": 1.0},
        6: {CORRECT: 0.4},
        9: {CORRECT: 0.3},
    }
    a, b = (make_run(tmp_path / name, f"seed: {seed}\n", scores) for seed, name in enumerate("ab"))
    changed = {"step": 5, "key": "data.evaluate", "input": True, "was": {}, "now": {}}
    (tmp_path / "b/changes.jsonl").write_text(json.dumps(changed) + "\n")
    found = [each.scores[CORRECT] for each in ascent.compare_runs([a, b]).runs]
    assert [(each.best.step, each.last.step) for each in found] == [(0, 9), (6, 9)]


def test_intervals_of_one_run_are_over_its_prompts(tmp_path: Path) -> None:
    metrics = {
        0: {CORRECT: 0.5, "eval/reward/mean": 0.0},
        3: {CORRECT: 0.75, "eval/reward/mean": 0.4},
    }
    answers: Any = {
        0: [(1.0, 0.0), (0.0, 0.0)],
        3: [(1.0, 0.1), (1.0, 0.2), (1.0, 0.3), (0.0, 1.0)],
    }
    a = make_run(tmp_path / "a", "seed: 0\n", metrics, answers)
    b = make_run(
        tmp_path / "b", "seed: 0\n", metrics, {3: answers[3]}, of=8
    )  # half of the answers were logged
    c = make_run(tmp_path / "c", "seed: 0\n", metrics, {3: [*answers[3], (None, 0.0)]}, of=8)
    names = [CORRECT, "eval/reward/mean", "eval/reward/std"]
    with pytest.raises(
        ValueError,
        match=r"metric 'eval/reward/std' was logged by none of the runs; they have eval/rew",
    ):
        ascent.compare_runs([a, b], metrics=names)
    found = ascent.compare_runs([a, b, c], metrics=names[:2])
    correct, mean = (
        found.runs[0].scores[CORRECT].last,
        found.runs[0].scores["eval/reward/mean"].last,
    )
    assert (correct.low, correct.high) == wilson(3, 4)[1:3]
    bootstrap = estimate([0.1, 0.2, 0.3, 1.0])
    assert (mean.low, mean.high) == (bootstrap.low, bootstrap.high)
    assert (
        found.runs[1].scores[CORRECT].last.low,
        found.runs[1].scores[CORRECT].last.high,
    ) == wilson(6, 8)[1:3]
    assert (
        found.runs[1].scores["eval/reward/mean"].last.low is None
    )  # four of eight rewards do not say it
    assert (
        found.runs[2].scores[CORRECT].last.low is None
    )  # some of those not logged may be unscored


def test_seeds_are_summarized_with_students_interval(tmp_path: Path) -> None:
    values = {(0.1, 0): 0.2, (0.1, 1): 0.4, (0.1, 2): 0.9, (0.2, 0): 0.5}
    for (rate, seed), value in values.items():
        make_run(
            tmp_path / f"runs/{rate}-{seed}",
            f"seed: {seed}\nupdate: {{learning_rate: {rate}}}\n",
            {1: {"eval/loss/total": 2.0}, 2: {"eval/loss/total": value}},
        )
    found = ascent.compare_runs([tmp_path / "runs"], plot=tmp_path / "c.png")
    assert len(found.runs) == 4 and len(found.groups) == 2
    group = found.groups[0]
    assert group.label == "learning_rate=0.1" and len(group.runs) == 3
    last = group.scores["eval/loss/total"].last
    assert last.value == pytest.approx(0.5) and (last.low, last.high) == student_interval(
        [0.2, 0.4, 0.9]
    )
    assert group.scores["eval/loss/total"].curve == [(1, 2.0), (2, pytest.approx(0.5))]
    assert found.groups[1] == found.runs[3]
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_equal_runs_are_no_seeds(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, "seed: 0\n", {1: {"loss/total": 1.0}}) for name in "ab"]
    found = ascent.compare_runs(runs)  # nothing held-out: the training loss is compared
    assert (
        found.settings == {}
        and len(found.groups) == 2
        and list(found.larger_is_better) == ["loss/total"]
    )


def test_a_data_file_with_another_content_is_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = {
        "algorithm": "sft",
        "model.policy": "tiny:llama",
        "run.steps": 1,
        "data": {"train": "d.jsonl", "batch_size": 1, "max_tokens": 64},
    }
    for name, answer in (("a", "2"), ("b", "3")):
        Path("d.jsonl").write_text(f'{{"prompt": "1+1=", "completion": "{answer}"}}\n')
        ascent.train(recipe, run=name, progress=False, say=lambda text: None)
    assert list(ascent.compare_runs(["a", "b"]).settings) == ["data.train (content)"]


def test_errors(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs/a", "seed: 0\n", {1: {"loss/total": 1.0}})
    empty = make_run(tmp_path / "empty", "seed: 0\n", {1: {}})
    with pytest.raises(ValueError, match=r"needs at least two runs; there are 1 in .*runs"):
        ascent.compare_runs([tmp_path / "runs", run])
    with pytest.raises(ValueError, match="is no folder"):
        try:
            ascent.compare_runs([run, tmp_path / "gone"])
        except OSError as error:
            raise ValueError(error) from error
    with pytest.raises(
        ValueError, match=r"plot=c\.gif cannot be drawn; its name must end in \.png"
    ):
        ascent.compare_runs([run, empty], plot="c.gif")
    with pytest.raises(ValueError, match="no finite value to compare"):
        ascent.compare_runs([empty, make_run(tmp_path / "other", "seed: 0\n", {1: {}})])
