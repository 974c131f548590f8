"""A save that is killed, or finds no room, at any change on disk leaves a whole checkpoint to continue from."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE

from ascent.checkpoints import disk
from ascent.checkpoints.manifest import CheckpointError
from ascent.checkpoints.resume import newest, read_state
from ascent.checkpoints.save import RetentionPolicy, save, steps_in
from tests.checkpoints.crashing import mark_found, model_writer, save_mark, state_of

ROOT = Path(__file__).parents[2]


def crash(folder: Path, argument: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.checkpoints.crashing", str(folder), argument],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("step", [20, 10])  # a new step, and one that has a checkpoint already
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("torn", [True, False])
def test_killed_at_every_change_on_disk(tmp_path: Path, step: int, fresh: bool, torn: bool) -> None:
    lines = crash(
        tmp_path / "checkpoints",
        json.dumps({"step": step, "keep": 1, "torn": torn, "fresh": fresh}),
    )
    kills = [line for line in lines if "killed_at" in line]
    marks = [line["mark"] for line in lines if "at" in line]
    if fresh:  # the new one from the moment of its rename on, and the old one before it
        placed = next(
            n
            for n, kill in enumerate(kills)
            if (kill["kind"], kill["name"]) == ("rename", str(step))
        )
        assert marks == [10] * (placed + 1) + [99] * (len(kills) - placed)
        assert {kill["kind"] for kill in kills} == {"write", "fsync", "rename", "remove"}
        assert len(kills) > 15
    else:  # changes pile up, so their numbers shift from one attempt to the next
        assert marks == sorted(marks) and set(marks) == {10, 99}
    assert lines[-1] == {"after": ["30"], "mark": 30}  # the next save works and clears the wreckage


def changes(
    root: Path, step: int, keep: int, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(disk, "watcher", lambda kind, path: seen.append((kind, path.name)))
    save_mark(root, step, step, keep)
    monkeypatch.undo()
    return seen


def test_no_room_at_any_change_is_a_clear_error_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_mark(tmp_path / "count", 10, 10, keep=1)
    seen = changes(tmp_path / "count", 20, 1, monkeypatch)
    for place, (kind, _) in enumerate(seen):
        if kind == "remove":
            continue  # deleting needs no room
        root, count = tmp_path / str(place), 0
        save_mark(root, 10, 10, keep=1)

        def full(kind: str, path: Path, place: int = place) -> None:
            nonlocal count
            count += 1
            if count == place + 1:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))

        monkeypatch.setattr(disk, "watcher", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            save_mark(root, 20, 20, keep=1)
        monkeypatch.undo()
        placed = seen.index(("rename", "20"))
        assert mark_found(root) == (10 if place <= placed else 20)
        assert not list(root.glob(".*.writing"))
        save_mark(root, 30, 30, keep=1)
        assert [path.name for path in root.iterdir()] == ["30"]


def test_the_systems_own_refusal_to_write_is_a_clear_error(tmp_path: Path) -> None:
    error, after = crash(tmp_path / "checkpoints", "limited")
    assert "checkpoint of step 20 could not be written" in error["error"]
    assert "File too large" in error["error"] and "saved before it are untouched" in error["error"]
    assert after == {"mark": 10, "left": ["10"]}


def test_everything_is_synced_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = changes(tmp_path / "checkpoints", 1, 1, monkeypatch)
    named = seen.index(("rename", "1"))
    synced = {name for kind, name in seen[:named] if kind == "fsync"}
    written = {
        "config.json",
        "weights.safetensors",
        "optimizer.safetensors",
        "state.json",
        "manifest.json",
    }
    assert synced >= {*written, "model", ".1.writing"}
    assert seen[named + 1] == ("fsync", "checkpoints")
    assert max(n for n, (kind, _) in enumerate(seen) if kind == "write") < named


def test_the_layout(tmp_path: Path) -> None:
    saved = save(
        tmp_path, 7, state_of(7), {"model": model_writer(7), "critic": model_writer(8)}, score=0.5
    )
    names = sorted(
        path.relative_to(saved.folder).as_posix()
        for path in saved.folder.rglob("*")
        if path.is_file()
    )
    assert saved.folder == tmp_path / "7"
    assert names == [
        *("critic/config.json", "critic/weights.safetensors", "manifest.json"),
        *("model/config.json", "model/weights.safetensors", "optimizer.safetensors", "state.json"),
    ]
    manifest = json.loads((saved.folder / "manifest.json").read_text())
    assert sorted(manifest["files"]) == [name for name in names if name != "manifest.json"]
    assert (manifest["step"], manifest["score"]) == (7, 0.5)


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    scores = {10: 0.2, 20: 0.9, 30: 0.1, 40: None, 50: 0.3, 60: math.nan}
    deleted = {
        step: save(
            tmp_path, step, {}, {}, keep=RetentionPolicy(last=2, best=1), score=score
        ).deleted
        for step, score in scores.items()
    }
    assert steps_in(tmp_path) == [20, 50, 60]
    assert deleted == {10: (), 20: (), 30: (10,), 40: (), 50: (30,), 60: (40,)}
    save(
        tmp_path,
        70,
        {},
        {},
        keep=RetentionPolicy(last=1, best=1, larger_is_better=False),
        score=0.5,
    )
    assert steps_in(tmp_path) == [50, 70]


def test_a_score_of_another_evaluation_is_kept_until_there_are_enough_of_this_one(
    tmp_path: Path,
) -> None:
    scores = {
        1: 0.9,
        2: 0.8,
        3: None,
        4: 0.1,
        5: 0.2,
    }  # from step 3 on, something else is evaluated
    for step, score in scores.items():
        keep = RetentionPolicy(last=1, best=1, scored_since=3 if step >= 3 else 0)
        save(tmp_path, step, {}, {}, keep=keep, score=score)
        assert steps_in(tmp_path) == {1: [1], 2: [1, 2], 3: [1, 3], 4: [4], 5: [5]}[step]


def test_checkpoints_of_an_abandoned_future_go_once_the_new_one_is_whole(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save_mark(tmp_path, step, step, keep=3)
    assert save(
        tmp_path, 15, state_of(15), {"model": model_writer(15)}, keep=RetentionPolicy(last=2)
    ).deleted == (
        20,
        30,
    )
    assert mark_found(tmp_path) == 15


def test_a_failing_model_writer_leaves_no_trace(tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("boom")

    save_mark(tmp_path, 10, 10, keep=1)
    with pytest.raises(RuntimeError, match="boom"):
        save(tmp_path, 20, {}, {"model": fails})
    assert [path.name for path in tmp_path.iterdir()] == ["10"]


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: save_file({"w": torch.ones(300)}, folder / "w.safetensors"),
        lambda folder: Tokenizer(BPE()).save(str(folder / "tokenizer.json")),
        lambda folder: (folder / "config.json").write_text("x" * 300),
    ],
    ids=["safetensors", "tokenizers", "python"],
)
def test_no_room_is_a_clear_error_whichever_library_finds_it(tmp_path: Path, write: Any) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        with pytest.raises(
            CheckpointError, match=r"step 20 could not be written to .*File too large"
        ):
            save(tmp_path, 20, {}, {"model": write})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_tensors_that_share_memory_are_saved(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    save(tmp_path, 1, {"a": whole, "b": whole, "c": whole[:3], "d": whole[4:], "e": whole[:0]}, {})
    found = newest(tmp_path)
    assert found is not None
    saved = read_state(found.folder)
    assert [saved[name].tolist() for name in "abcde"] == [[0, 1, 2, 3, 4, 5]] * 2 + [
        [0, 1, 2],
        [4, 5],
        [],
    ]


def test_parts_of_a_tensor_that_do_not_overlap_are_written_from_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be no memory for copies of an optimizer's state."""
    whole, written = torch.arange(6.0), {}

    def write(tensors: dict[str, torch.Tensor], path: Path) -> None:
        written.update({name: tensor.data_ptr() for name, tensor in tensors.items()})
        save_file(tensors, path)

    monkeypatch.setattr("ascent.checkpoints.save.save_file", write)
    parts = {"b": whole[2:6], "a": whole[:2]}
    save(tmp_path, 1, parts, {})
    assert written == {name: tensor.data_ptr() for name, tensor in parts.items()}


def test_impossible_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a checkpoint of step -1"):
        save(tmp_path, -1, {}, {})
    with pytest.raises(ValueError, match="keep last=0"):
        RetentionPolicy(last=0)
    with pytest.raises(ValueError, match="'x' in the state is a set"):
        save(tmp_path, 1, {"x": {1}}, {})
    assert not list(tmp_path.iterdir())
