"""A run that was killed, ran out of disk, lost a piece of a checkpoint or was asked to stop ends in the same bits.

"The same" is the last checkpoint's weights by sha256, and with them every other file of it (moments, data position,
random states) and the whole history of metrics.
"""

from __future__ import annotations

import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ascent.checkpoints.resume import newest
from ascent.runs.folder import read_run
from tests.end_to_end import crashing
from tests.end_to_end.crashing import (
    EPOCH,
    STEPS,
    differences,
    digest,
    finish,
    outcome,
    recipe,
    said,
)

ROWS = ("sft", "reward_model", "dpo")
PIECES = ("model/model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")


class Undisturbed(NamedTuple):
    outcome: dict[str, Any]
    seconds: float  # from the moment there is a run folder to the end


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Undisturbed]:
    known: dict[str, Undisturbed] = {}

    def of(row: str) -> Undisturbed:
        if row not in known:
            folder = tmp_path_factory.mktemp(row) / "run"
            child = crashing.start(folder, recipe(row))
            crashing.wait_for((folder / "config.yaml").exists)
            began = time.monotonic()
            assert crashing.ended(child) == 0, said(folder)
            known[row] = Undisturbed(outcome(folder), time.monotonic() - began)
            # A run that learns nothing would end alike whatever was lost.
            assert (
                sum(line.get("optim/grad_norm", 0) > 0 for line in known[row].outcome["metrics"])
                > STEPS / 2
            )
        return known[row]

    return of


def ends_alike(folder: Path, expected: Undisturbed) -> None:
    """Resume the run, and compare."""
    assert finish(folder) == 0, said(folder)
    assert differences(outcome(folder), expected.outcome) == [], said(folder)


@pytest.mark.parametrize("row", [*ROWS, "grpo", "rlhf"])
def test_killed_at_every_change_of_a_save(row: str, tmp_path: Path, undisturbed: Any) -> None:
    """Step 4 is in the second epoch. Two wrecks of the same content are one: resuming sees nothing but the content."""
    folder, wrecks = tmp_path / "run", tmp_path / "wrecks"
    assert finish(folder, recipe(row, keep=1), crashing.kill_at_every_change, 4, wrecks) == 0, said(
        folder
    )
    kills = re.findall(r"killed at (\d+): (\S+) (\S+)", said(folder))
    assert [int(number) for number, _, _ in kills] == list(range(1, len(kills) + 1))
    announced = [
        (kind, name) for _, kind, name in kills if kind in ("write", "fsync", "rename", "remove")
    ]
    assert {name for kind, name in announced if kind == "write"} >= {
        "model",
        "optimizer.safetensors",
        "state.json",
    }
    assert {name for kind, name in announced if kind == "fsync"} >= {
        "model.safetensors",
        "manifest.json",
        "checkpoints",
    }
    assert (("write", "critic") in announced) == (row == "rlhf")
    assert ("rename", "4") in announced and len(announced) >= 18
    assert ("open", "config.json") in [
        (kind, name) for _, kind, name in kills
    ]  # inside the model's own writing
    distinct = {digest(wrecks / number): wrecks / number for number, _, _ in kills}
    starts = set()
    for wreck in distinct.values():
        found = newest(wreck / "checkpoints")
        assert found is not None
        starts.add(found.step)
        ends_alike(wreck, undisturbed(row))
    assert starts == {2, 4}
    print(
        f"{row}: {len(kills)} kills, {len(announced)} of them announced, {len(distinct)} distinct wrecks"
    )


@pytest.mark.parametrize(
    ("row", "instants"),
    [
        ("sft", 20),
        ("reward_model", 6),
        ("dpo", 6),
        ("grpo", 6),
        ("ppo", 6),
        ("rlhf", 6),
        ("ptx", 6),
        ("lagging", 6),
        ("partial", 4),
        ("talking", 6),
        ("online_dpo", 6),
        ("xpo", 6),
        ("nash_md", 6),
        pytest.param("xpo", 20, marks=pytest.mark.learning),
        pytest.param("talking", 20, marks=pytest.mark.learning),
        pytest.param("rlhf", 20, marks=pytest.mark.learning),
        pytest.param("ptx", 20, marks=pytest.mark.learning),
        pytest.param("lagging", 20, marks=pytest.mark.learning),
        pytest.param("partial", 20, marks=pytest.mark.learning),
        pytest.param("grpo", 20, marks=pytest.mark.learning),
        pytest.param("ppo", 20, marks=pytest.mark.learning),
        pytest.param("reward_model", 20, marks=pytest.mark.learning),
        pytest.param("dpo", 20, marks=pytest.mark.learning),
    ],
)
def test_killed_at_random_instants(
    row: str, instants: int, tmp_path: Path, undisturbed: Any
) -> None:
    """Spread evenly over the steps, each a random time after its step began.

    A run is killed at most once in each step. What was killed is resumed and killed again; until then it has to log
    what the undisturbed run logged, and the last one is resumed to the end.
    """
    expected, rng, steps = undisturbed(row), random.Random(f"{row} {instants}"), []
    runs = -(-instants // STEPS)
    for first in range(runs):
        folder = tmp_path / str(first)
        for starts, number in enumerate(range(first, instants, runs), start=1):
            kill_at(
                folder,
                row,
                starts,
                number * STEPS // instants,
                rng.random() * 1.5 * expected.seconds / STEPS,
            )
            logged = crashing.history(folder)
            steps.append(len(logged))
            assert logged == expected.outcome["metrics"][: len(logged)], said(folder)
        ends_alike(folder, expected)
    print(f"{row}: killed after steps {steps}")
    assert len(steps) == instants
    assert min(steps) < EPOCH < max(steps)  # in both epochs


def kill_at(folder: Path, row: str, starts: int, step: int, delay: float) -> None:
    """Start the run, or resume it, and kill it a while after this step began.

    One that was over before it could be killed, or had come far beyond its step, is started again with less time.
    """
    before = folder.with_name("before")
    if starts > 1:
        shutil.copytree(folder, before)
    for attempt in range(20):
        child = crashing.start(folder, recipe(row) if starts == 1 else None)
        crashing.wait_for(partial(ready, folder, starts, step))
        time.sleep(delay * 0.7**attempt)
        child.kill()
        killed = crashing.ended(child) == -signal.SIGKILL
        over = (folder / "outcome.json").exists()  # the run was, only its process was not
        if killed and not over and crashing.steps_logged(folder) <= step + 2:
            break
        shutil.rmtree(folder)
        if starts > 1:
            shutil.copytree(before, folder)
    else:
        raise AssertionError("20 runs in a row had gone too far before they could be killed")
    shutil.rmtree(before, ignore_errors=True)


def ready(folder: Path, starts: int, step: int) -> bool:
    """Whether as many processes as that have opened the run folder, and the last has come to this step."""
    return crashing.starts(folder) == starts and crashing.steps_logged(folder) >= step


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped": flip,
    "truncated": truncate,
    "missing": Path.unlink,
}
HARMS = {
    "sft": [(damage, piece) for damage in DAMAGES for piece in PIECES],
    "reward_model": [("flipped", PIECES[0]), ("truncated", PIECES[2])],
    "dpo": [("flipped", PIECES[1]), ("missing", PIECES[0])],
}


@pytest.mark.parametrize("row", ROWS)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    row: str, tmp_path: Path, undisturbed: Any
) -> None:
    origin = tmp_path / "origin"
    assert (
        finish(origin, recipe(row), crashing.full_disk, 6, "write", "model") == 1
    )  # leaves steps 2 and 4
    for damage, piece in HARMS[row]:
        folder = tmp_path / f"{damage}-{Path(piece).name}"
        shutil.copytree(origin, folder)
        DAMAGES[damage](folder / "checkpoints/4" / piece)
        ends_alike(folder, undisturbed(row))
        told = said(folder)
        reason = re.search(r"checkpoint 4 is not used: (.*)", told)
        assert reason is not None and Path(piece).name in reason[1], told
        assert "continuing from the checkpoint of step 2" in told


FULL_AT = {
    "sft": [
        ("write", "model"),
        ("write", "optimizer.safetensors"),
        ("fsync", "state.json"),
        ("rename", "4"),
    ],
    "reward_model": [("write", "manifest.json")],
    "dpo": [("write", "optimizer.safetensors")],
}


@pytest.mark.parametrize("row", ROWS)
def test_a_full_disk_is_a_clear_error_and_costs_nothing(
    row: str, tmp_path: Path, undisturbed: Any
) -> None:
    for kind, name in FULL_AT[row]:
        folder = tmp_path / f"{kind}-{name}"
        assert finish(folder, recipe(row), crashing.full_disk, 4, kind, name) == 1
        last = said(folder).rstrip().splitlines()[-1]
        assert "CheckpointError: the checkpoint of step 4 could not be written" in last, said(
            folder
        )
        assert "No space left on device" in last and "Free some space" in last
        assert [path.name for path in (folder / "checkpoints").iterdir()] == ["2"]
        ends_alike(folder, undisturbed(row))
        assert "continuing from the checkpoint of step 2" in said(folder)


@pytest.mark.parametrize("row", ROWS)
def test_sigterm_finishes_the_step_and_saves(row: str, tmp_path: Path, undisturbed: Any) -> None:
    """The signal comes while a step is under way whose number no checkpoint would have."""
    folder, go = tmp_path / "run", tmp_path / "go"
    child = crashing.start(folder, recipe(row), crashing.wait_in_step, 3, go)
    crashing.wait_for((tmp_path / "waiting").exists)
    child.terminate()
    crashing.wait_for(lambda: "SIGTERM" in said(folder))
    go.touch()
    assert crashing.ended(child) == 0, said(folder)
    assert "finishing this step, saving, then exiting" in said(folder)
    assert f"stopped after step 3 of {STEPS}" in said(folder)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["2", "3"]
    ends_alike(folder, undisturbed(row))
    assert "continuing from the checkpoint of step 3" in said(folder)


@pytest.mark.parametrize("row", ROWS)
def test_killed_between_the_last_save_and_the_end(
    row: str, tmp_path: Path, undisturbed: Any
) -> None:
    """Nothing is left to train, but the run has not ended; resuming ends it, and then there is nothing to resume."""
    folder = tmp_path / "run"
    assert finish(folder, recipe(row), crashing.kill_after, STEPS) == -signal.SIGKILL, said(folder)
    assert not (folder / "outcome.json").exists()
    ends_alike(folder, undisturbed(row))
    assert read_run(folder).state == "finished"
    assert finish(folder) == 1
    assert "nothing to resume" in said(folder).splitlines()[-1]


def test_killed_while_it_is_being_built(tmp_path: Path, undisturbed: Any) -> None:
    """At every change before there is a run: `train` again ends alike. From the moment there is one: `resume` does."""
    built = 0
    for number in range(1, 100):
        folder = tmp_path / str(number)
        assert (
            finish(folder, recipe("dpo"), crashing.kill_at_change, number, folder)
            == -signal.SIGKILL
        ), said(folder)
        if (folder / "config.yaml").exists():
            built = number
            ends_alike(folder, undisturbed("dpo"))
            break
        assert finish(folder, recipe("dpo")) == 0, said(folder)
        assert differences(outcome(folder), undisturbed("dpo").outcome) == [], said(folder)
        shutil.rmtree(folder)
    print(f"dpo: killed at {built} changes before there was a run")
    assert built > 10


def test_a_second_process_is_refused_and_the_first_unharmed(
    tmp_path: Path, undisturbed: Any
) -> None:
    folder, second, go = tmp_path / "run", tmp_path / "second.log", tmp_path / "go"
    child = crashing.start(folder, recipe("sft"), crashing.wait_before, 4, go)
    crashing.wait_for((tmp_path / "waiting").exists)
    before = digest(folder)
    assert finish(folder, None, crashing.log_to, second) == 1
    assert (
        f"FolderLockedError: {folder} is being written by process {child.pid}" in second.read_text()
    )
    assert digest(folder) == before
    go.touch()
    assert crashing.ended(child) == 0, said(folder)
    assert differences(outcome(folder), undisturbed("sft").outcome) == []
