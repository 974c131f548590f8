"""Runs below the given folders: their names, and one line about each."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ascent.feedback.win_rate import wilson
from ascent.runs.folder import RunFolder
from ascent.runs.lock import Lock
from ascent.view import library as libraries
from ascent.view.library import Library, RunReader, answer_interval
from tests.view.written import write_run


def line_of(library: Library, name: str) -> dict[str, Any]:
    (found,) = [line for line in library.lines(seconds=10)[0] if line["id"] == name]
    return found


def test_names_are_paths_below_the_folder(tmp_path: Path) -> None:
    for name in ("runs/a", "runs/sweep/b", "other/a"):
        write_run(tmp_path / name)
    assert list(Library([tmp_path / "runs"]).runs()) == ["a", "sweep/b"]
    assert list(Library([tmp_path / "runs/a"]).runs()) == ["a"]
    assert list(Library([tmp_path / "runs", tmp_path / "other"]).runs()) == [
        "runs/a",
        "runs/sweep/b",
        "other/a",
    ]
    (tmp_path / "x").mkdir()
    (tmp_path / "x/runs").symlink_to(tmp_path / "runs")  # a link that was given is meant
    assert list(Library([tmp_path / "x/runs"]).runs()) == ["a", "sweep/b"]
    assert list(Library([tmp_path / "x"]).runs()) == []  # one that was found is not followed
    with pytest.raises(ValueError, match=r"none: no such folder; give folders that hold runs"):
        Library([tmp_path / "none"])
    with pytest.raises(FileNotFoundError, match=r"there is no run '\.\./other/a' here"):
        Library([tmp_path / "runs"]).run("../other/a")


def test_what_a_run_printed_is_read_only_below_the_given_folder(tmp_path: Path) -> None:
    write_run(tmp_path / "sweep/a")
    (tmp_path / "sweep/a.log").write_text("step 1\n")
    assert Library([tmp_path]).run("sweep/a").files.output() == "step 1\n"
    assert Library([tmp_path / "sweep"]).run("a").files.output() == "step 1\n"
    assert Library([tmp_path / "sweep/a"]).run("a").files.output() == ""


def test_a_state_is_read_again_where_it_can_have_changed(tmp_path: Path) -> None:
    """Killed, taken up again, killed again, finished: the file that says so changes each time but for a kill."""
    path = write_run(tmp_path / "a")
    run = RunReader("a", path)
    assert run.state() == "finished"
    (path / "outcome.json").unlink()
    assert run.state() == "killed"
    for _ in range(2):
        lock = Lock(path, say=lambda line: None)
        assert run.state() == "running"
        lock._close()  # as the system does for a killed process: no file changes
        assert run.state() == "killed"
    (path / "outcome.json").write_text(json.dumps({"ending": "failed", "message": ""}))
    assert run.state() == "failed"


def test_new_and_deleted_runs_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "SECONDS_BETWEEN_WALKS", 0)
    write_run(tmp_path / "a")
    library = Library([tmp_path])
    first = library.run("a")
    write_run(tmp_path / "b")
    assert list(library.runs()) == ["a", "b"] and library.run("a") is first
    (tmp_path / "a").rename(tmp_path / ".trash")
    assert list(library.runs()) == ["b"]


def test_a_line(tmp_path: Path) -> None:
    write_run(tmp_path / "a", steps=8, recipe={"seed": 3, "model.policy": "m"}, evaluate_every=4)
    line = line_of(Library([tmp_path]), "a")
    expected = {
        "state": "finished",
        "step": 8,
        "steps": 10,
        "recipe": "grpo",
        "algorithm": "grpo",
        "model": "m",
        "seed": 3,
    }
    assert {key: line[key] for key in expected} == expected
    assert line["metric"] == "eval/reward/correct" and line["spark_metric"] == "reward/mean"
    assert (line["last"]["value"], line["best"]["step"], line["last"]["low"]) == (0.8, 8, None)
    assert line["spark"] == [step / 10 for step in range(1, 9)] and line["time_left"] is None


def test_a_live_run_grows_and_says_how_long_it_takes(tmp_path: Path) -> None:
    inputs = json.dumps({"recipe": {"run.steps": 100}})
    library = Library([tmp_path])
    with RunFolder.create(tmp_path / "a", "x: 1\n", {}, inputs=inputs) as run:
        path = tmp_path / "a/metrics.jsonl"
        path.write_text(
            "".join(
                json.dumps({"step": s, "timestamp": 100 + 2.0 * s}) + "\n" for s in range(1, 41)
            )
        )
        line = line_of(library, "a")
        assert (line["state"], line["step"], line["time_left"]) == ("running", 40, 120.0)
        run.log_warning(40, {"name": "entropy"})
        run.log(41, {"reward/mean": 0.5})
        assert [line_of(library, "a")[key] for key in ("step", "warnings")] == [41, 1]
    assert line_of(library, "a")["state"] == "killed"


@pytest.mark.parametrize(
    "name", ["inputs.json", "outcome.json", "metrics.jsonl", "environment.json", "config.yaml"]
)
@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"[]", b'{"recipe": 3}', b'{"step": "x"}\n'])
def test_damaged_files_do_no_harm(tmp_path: Path, name: str, content: bytes) -> None:
    (write_run(tmp_path / "a", evaluate_every=1) / name).write_bytes(content)
    line = line_of(Library([tmp_path]), "a")
    assert line["state"] in ("finished", "damaged") and line["step"] in (0, 3)


def test_links_in_a_run_are_not_followed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs/a")
    (tmp_path / "o.json").write_text(json.dumps({"ending": "secret", "message": ""}))
    (run / "outcome.json").unlink()
    (run / "outcome.json").symlink_to(tmp_path / "o.json")
    assert line_of(Library([tmp_path / "runs"]), "a")["state"] == "damaged"


def test_changes_of_the_recipe_apply(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", recipe={"update.learning_rate": 1.0})
    lines = [
        {"step": 2, "key": "update.learning_rate", "was": 1.0, "now": 0.5},
        {"step": 2, "key": "data.train", "input": True},
    ]
    (run / "changes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert RunReader("a", run).recipe()["update.learning_rate"] == 0.5


def test_the_best_score_is_of_the_evaluation_that_the_last_is_of(tmp_path: Path) -> None:
    """Scores fall from step 2 on; from step 5 on something else is evaluated."""
    run = write_run(tmp_path / "a")
    lines = [{"step": step, "eval/reward/correct": 1 - step / 10} for step in (2, 4, 6, 8)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    best = []
    for change in (
        {"step": 5, "key": "data.train", "input": True},
        {"step": 5, "key": "data.evaluate", "input": True},
        {"step": 9, "key": "rewards[0].use", "was": "a", "now": "b"},
        {"step": "x", "key": "data.evaluate", "input": True},
    ):
        (run / "changes.jsonl").write_text(json.dumps(change) + "\n")
        best.append(line_of(Library([tmp_path]), "a")["best"]["step"])
    assert best == [2, 6, 8, 2]


def test_many_runs_are_listed_before_all_is_known(tmp_path: Path) -> None:
    for number in range(5):
        write_run(tmp_path / f"r{number}", evaluate_every=1)
    library = Library([tmp_path])
    lines, pending = library.lines(seconds=0)
    assert (len(lines), pending) == (5, 5) and all(
        line["step"] == 3 and "last" not in line for line in lines
    )
    lines, pending = library.lines(seconds=10)
    assert pending == 0 and all("last" in line for line in lines)


def answers(values: list[Any], of: int | None = None) -> list[dict[str, Any]]:
    return [
        {"correct": value, "reward": value, "parts": {"odd": 1}, "of": of or len(values)}
        for value in values
    ]


def test_intervals() -> None:
    assert (
        answer_interval(answers([1.0, 0.0, 1.0, 1.0]), "eval/reward/correct", 0.75)
        == wilson(3, 4)[1:3]
    )
    low, high = answer_interval(answers([0.5, 1.5, 1.0, 1.0]), "eval/reward/mean", 1.0) or (0, 0)
    assert high - 1 == pytest.approx(
        1.959964 * math.sqrt((0.25 + 0.25) / 3 / 4)
    ) and 1 - low == pytest.approx(high - 1)
    for found in ([], answers([None]), answers([0.3, 0.4], of=9)):
        assert answer_interval(found, "eval/reward/mean", 0.5) is None
    assert answer_interval(answers([1.0]), "eval/loss/total", 0.5) is None
