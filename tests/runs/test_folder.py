"""A run folder through its life: created, logged to, killed, resumed, ended, read, listed."""

from __future__ import annotations

import json
import math
import resource
from pathlib import Path

import pytest

from ascent.protocols import Tracker
from ascent.runs.folder import RunFolder, list_runs, read_run
from ascent.runs.lock import FolderLockedError

CONFIG = "algorithm: sft\n"


def created(path: Path) -> RunFolder:
    return RunFolder.create(path, CONFIG, {"python": "3.11"}, say=lambda text: None)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    with created(tmp_path / "one") as folder:
        tracker: Tracker = folder
        tracker.log(1, {"loss/total": 2.0, "preference/accuracy": math.nan})
        tracker.log(2, {"loss/total": 1.0})
        folder.log_samples(2, [{"prompt": "1+1", "completion": "2", "reward": 1.0}], of=4)
        assert read_run(tmp_path / "one").state == "running"
        folder.checkpoints.mkdir()
        (folder.checkpoints / "2").mkdir()
        (folder.checkpoints / ".3.writing").mkdir()
        folder.finish("finished", 2, "all steps done")
    run = read_run(tmp_path / "one")
    assert (run.config, run.environment) == (CONFIG, [{"python": "3.11"}])
    assert [record["step"] for record in run.metrics] == [1.0, 2.0]
    assert math.isnan(run.metrics[0]["preference/accuracy"]) and run.metrics[0]["timestamp"] > 1e9
    assert run.samples == [{"step": 2, "prompt": "1+1", "completion": "2", "reward": 1.0, "of": 4}]
    assert (run.answers, run.warnings) == ([], [])
    assert (run.checkpoints, run.state, run.message, run.notes) == (
        [2],
        "finished",
        "all steps done",
        [],
    )
    assert (tmp_path / "one/curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_killed_run_is_resumed_with_one_history(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with created(path) as folder:
        for step in range(1, 8):
            folder.log(step, {"loss/total": float(step)})
            folder.log_samples(step, [{"text": "x"}], of=1)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "lo')  # killed in the middle of a line
    before = read_run(path)
    assert before.state == "killed" and "resume" in before.message
    assert (
        len(before.notes) == 1 and "metrics.jsonl: the last line is incomplete" in before.notes[0]
    )
    said: list[str] = []
    with RunFolder.reopen(path, 5, {"python": "3.12"}, say=said.append) as folder:
        folder.log(6, {"loss/total": 60.0})
        folder.finish("stopped", 6)
    run = read_run(path)
    assert [(record["step"], record["loss/total"]) for record in run.metrics] == [
        *((step, float(step)) for step in range(1, 6)),
        (6, 60.0),
    ]
    assert [record["step"] for record in run.samples] == [1, 2, 3, 4, 5]
    assert [each["python"] for each in run.environment] == ["3.11", "3.12"]
    assert run.state == "stopped" and run.notes == []
    assert any("incomplete" in text for text in said)
    assert any("metrics.jsonl: 2 lines from after step 5 are dropped" in text for text in said)


def test_a_folder_has_one_run_and_one_writer(tmp_path: Path) -> None:
    with created(tmp_path), pytest.raises(FolderLockedError):
        RunFolder.reopen(tmp_path, 0, {})
    with pytest.raises(
        FileExistsError, match="holds a run already; resume it, or choose another folder"
    ):
        created(tmp_path)
    with RunFolder.reopen(tmp_path, 0, {}):  # the refusal above gave the folder free again
        pass
    for reader in (read_run, lambda path: RunFolder.reopen(path, 0, {})):
        with pytest.raises(FileNotFoundError, match="is no run folder"):
            reader(tmp_path / "nowhere")


def test_runs_are_listed_with_their_state_and_last_metrics(tmp_path: Path) -> None:
    with created(tmp_path / "b") as folder:
        folder.log(3, {"loss/total": 0.5})
        folder.finish("failed", 3, "boom")
    with created(tmp_path / "a"):
        pass
    (tmp_path / "no run").mkdir()
    with created(tmp_path / "c"):
        (tmp_path / "c/metrics.jsonl").write_text("{bad\n{}\n")
    found = list_runs(tmp_path)
    assert [(each.name, each.state, each.step) for each in found] == [
        ("a", "killed", 0),
        ("b", "failed", 3),
        ("c", "damaged", 0),
    ]
    assert found[1].latest["loss/total"] == 0.5
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 1 is not JSON"):
        read_run(tmp_path / "c")
    with pytest.raises(FileNotFoundError, match="is no folder"):
        list_runs(tmp_path / "nowhere")


def test_runs_in_subfolders_are_listed_and_folders_inside_a_run_are_not(tmp_path: Path) -> None:
    for name in (
        "study/round-1/policy",
        "study/round-1/policy/inner",
        "study/b",
        ".hidden/run",
        "one",
    ):
        created(tmp_path / name).close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.yaml").write_text("another tool's\n")
    assert [each.name for each in list_runs(tmp_path)] == ["one", "study/b", "study/round-1/policy"]
    assert [(each.name, each.path) for each in list_runs(tmp_path / "one")] == [
        ("one", tmp_path / "one")
    ]


def test_changes_are_kept_as_far_as_the_run_goes_back(tmp_path: Path) -> None:
    """A change for step 6 is history once the run goes on from step 5; taken back to step 3, it has not happened."""
    path = tmp_path / "run"
    created(path).close()
    for done, value in ((5, 1), (5, 2), (7, 3)):
        change = {"step": done + 1, "key": "a.b", "now": value}
        RunFolder.reopen(path, done, {}, changes=[change], say=lambda text: None).close()
    assert [(each["step"], each["now"]) for each in read_run(path).changes] == [
        (6, 1),
        (6, 2),
        (8, 3),
    ]
    RunFolder.reopen(path, 5, {}, say=lambda text: None).close()
    assert [each["now"] for each in read_run(path).changes] == [1, 2]
    RunFolder.reopen(path, 3, {}, say=lambda text: None).close()
    assert read_run(path).changes == []


@pytest.mark.parametrize("name", ["environment.json", "outcome.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    with created(tmp_path / "run") as folder:
        folder.finish("stopped", 1)
    (tmp_path / "run" / name).write_text('[{"pyth')
    with pytest.raises(
        ValueError,
        match=rf"{tmp_path / 'run' / name} is damaged: it is not JSON .*restore it from a",
    ):
        read_run(tmp_path / "run")
    if name == "environment.json":
        with pytest.raises(ValueError, match=r"environment\.json is damaged"):
            RunFolder.reopen(tmp_path / "run", 0, {}, say=lambda text: None)
        (tmp_path / "run" / name).write_text("[]")  # as the message says
        RunFolder.reopen(tmp_path / "run", 0, {"python": "3.12"}, say=lambda text: None).close()
        assert read_run(tmp_path / "run").environment == [{"python": "3.12"}]


def test_other_versions_than_at_the_last_start_are_said(tmp_path: Path) -> None:
    created(tmp_path / "run").close()
    said: list[str] = []
    for torch in ("2.12", "2.12", "2.13"):
        RunFolder.reopen(
            tmp_path / "run", 0, {"packages": {"torch": torch}}, say=said.append
        ).close()
    assert [line.partition(" since")[0] for line in said] == [
        "torch (not installed) -> 2.12",
        "torch 2.12 -> 2.13",
    ]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with created(tmp_path / "run") as folder:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5, hard))
        try:
            with pytest.raises(
                OSError, match=rf"File too large: '{tmp_path / 'run/outcome.json'}'"
            ):
                folder.finish("stopped", 1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not (tmp_path / "run/.outcome.json.writing").exists()


def test_a_run_without_one_number_ends_without_a_picture(tmp_path: Path) -> None:
    with created(tmp_path / "r") as folder:
        folder.finish("failed", 0, "before the first step")
    assert not (tmp_path / "r/curves.png").exists()
    assert json.loads((tmp_path / "r/outcome.json").read_text())["ending"] == "failed"
