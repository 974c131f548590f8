"""One writer per folder, across processes; the dead hold nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ascent.runs.lock import FolderLockedError, Lock, holder

ROOT = Path(__file__).parents[2]
HOLD = """
import os, sys, time
from pathlib import Path
from ascent.runs.lock import Lock
lock = Lock(Path(sys.argv[1]))
if sys.argv[2] == "fork" and os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
    time.sleep(60)
elif sys.argv[2] != "fork":
    print("held", flush=True)
time.sleep(60)
"""


def hold(folder: Path, how: str = "alone") -> tuple[subprocess.Popen[str], str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), how], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    return child, child.stdout.readline().strip()


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


def test_another_process_is_refused_until_this_one_is_killed(tmp_path: Path) -> None:
    child, _ = hold(tmp_path)
    try:
        with pytest.raises(
            FolderLockedError,
            match=rf"is being written by process {child.pid} on .*; two processes cannot",
        ):
            Lock(tmp_path)
        assert str(holder(tmp_path)).startswith(str(child.pid))
    finally:
        end(child)
    assert holder(tmp_path) is None
    said: list[str] = []
    with Lock(tmp_path, say=said.append):
        assert (
            said == [said[0]]
            and f"left locked by process {child.pid}" in said[0]
            and "taking it over" in said[0]
        )
        assert str(holder(tmp_path)).startswith(f"{os.getpid()} on ")


def test_a_worker_that_outlives_the_run_does_not_hold_the_folder(tmp_path: Path) -> None:
    child, worker = hold(tmp_path, "fork")
    try:
        end(child)
        os.kill(int(worker), 0)  # it lives
        with Lock(tmp_path, say=lambda text: None):
            pass
    finally:
        os.kill(int(worker), signal.SIGKILL)


def test_the_same_process_cannot_take_it_twice_and_a_clean_release_says_nothing(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    lock = Lock(tmp_path, say=said.append)
    with pytest.raises(FolderLockedError):
        Lock(tmp_path)
    lock.release()
    lock.release()
    Lock(tmp_path, say=said.append).release()
    assert said == []
    assert holder(tmp_path / "nowhere") is None


def test_a_lock_that_was_deleted_while_we_waited_for_it_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(handle: int) -> bool:
        (tmp_path / "lock").unlink()
        return True

    monkeypatch.setattr("ascent.runs.lock._acquire", too_late)
    with pytest.raises(FolderLockedError):
        Lock(tmp_path)
