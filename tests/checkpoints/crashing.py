"""Saves that are really killed (SIGKILL) at the n-th change on disk, for every n. Run as a program; prints JSON lines.

One process loads torch and forks a child for each n, so that hundreds of kills take seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from ascent.checkpoints import disk
from ascent.checkpoints.manifest import CheckpointError
from ascent.checkpoints.resume import newest, read_state
from ascent.checkpoints.save import RetentionPolicy, save


def state_of(mark: int) -> dict[str, Any]:
    return {
        "step": mark,
        "learners": {"policy": {"optimizer": {"mean.w": torch.full((300,), float(mark))}}},
    }


def model_writer(mark: int) -> Any:
    """Writes two files in three pieces, and may be killed between them."""

    def write(folder: Path) -> None:
        (folder / "config.json").write_text(f'{{"mark": {mark}}}')
        disk.announce("write", folder / "weights.safetensors")
        with (folder / "weights.safetensors").open("wb") as file:
            file.write(bytes([mark % 256]) * 500)
            file.flush()
            disk.announce("write", folder / "more")
            file.write(bytes([mark % 256]) * 500)

    return write


def save_mark(root: Path, step: int, mark: int, keep: int) -> None:
    save(root, step, state_of(mark), {"model": model_writer(mark)}, keep=RetentionPolicy(last=keep))


def killer(at: int, torn: bool) -> Any:
    """A watcher that kills this process at the `at`-th change; `torn` leaves half of what was being done behind."""
    seen = 0

    def watch(kind: str, path: Path) -> None:
        nonlocal seen
        seen += 1
        if seen == at:
            print(json.dumps({"killed_at": at, "kind": kind, "name": path.name}), flush=True)
            if torn and kind == "write" and path.suffix and not path.exists():
                path.write_bytes(b'{"half": ')
            if torn and kind == "remove":
                next(each for each in sorted(path.rglob("*")) if each.is_file()).unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    return watch


def attempt(at: int, torn: bool, root: Path, step: int, mark: int, keep: int) -> bool:
    """One save in a child that is killed at the `at`-th change; whether it was."""
    child = os.fork()
    if child == 0:
        disk.watcher = killer(at, torn)
        save_mark(root, step, mark, keep)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, status
    return False


def mark_found(root: Path) -> int:
    """Which checkpoint resuming takes, after looking at every part of it."""
    found = newest(root)
    assert found is not None
    state = read_state(found.folder)
    mark = int(state["step"])
    assert torch.equal(
        state["learners"]["policy"]["optimizer"]["mean.w"], torch.full((300,), float(mark))
    )
    assert (found.folder / "model/weights.safetensors").read_bytes() == bytes([mark % 256]) * 1000
    return mark


def scenario(root: Path, *, step: int, keep: int, torn: bool, fresh: bool) -> None:
    """Kill a save of `step` (mark 99) at every change, over a folder that holds steps 5 (mark 5) and 10 (mark 10).

    `fresh` starts each attempt from a clean folder; otherwise the wreckage of all kills before piles up.
    """
    at, killed = 1, True
    while killed:
        if fresh or at == 1:
            shutil.rmtree(root, ignore_errors=True)
            for old in (5, 10):
                save_mark(root, old, old, keep=2)
        killed = attempt(at, torn, root, step, 99, keep)
        print(json.dumps({"at": at, "killed": killed, "mark": mark_found(root)}), flush=True)
        at += 1
    save_mark(root, 30, 30, keep=1)
    print(
        json.dumps(
            {"after": sorted(path.name for path in root.iterdir()), "mark": mark_found(root)}
        ),
        flush=True,
    )


def limited(root: Path) -> None:
    """A save while no file may grow beyond 20 kB: what the system itself does when there is no room."""
    import resource

    save_mark(root, 10, 10, keep=2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    try:
        save(root, 20, {"big": torch.zeros(100_000)}, {"model": model_writer(20)})
    except CheckpointError as error:
        print(json.dumps({"error": str(error)}))
    print(
        json.dumps(
            {"mark": mark_found(root), "left": sorted(path.name for path in root.iterdir())}
        ),
        flush=True,
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if sys.argv[2] == "limited":
        limited(folder)
    else:
        scenario(folder, **json.loads(sys.argv[2]))
