"""A control group per program, where possible: the kernel then counts and limits its memory.

It is possible as root, or where a group was delegated to this user (`systemd-run --user --scope`), with the memory
controller enabled for groups beside or below ours. Elsewhere memory.py measures from outside.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ascent.sandbox.limits import MEGABYTE, Limits
from ascent.sandbox.memory import process_tree

ROOT = Path("/sys/fs/cgroup")
_PREFIX = "ascent-"
# (the limit's file, the file with OOM kills): version 2, then 1.
_FILES = (("memory.max", "memory.events"), ("memory.limit_in_bytes", "memory.oom_control"))


class Group:
    """One group of one worker, used by one program after another. Its files are opened before root is dropped."""

    def __init__(self, folder: Path) -> None:
        limit, events = next(pair for pair in _FILES if (folder / pair[0]).exists())
        self._limit, self._members = (
            os.open(folder / name, os.O_WRONLY) for name in (limit, "cgroup.procs")
        )
        self._events = os.open(folder / events, os.O_RDONLY)
        self._processes = (
            os.open(folder / "pids.max", os.O_WRONLY) if (folder / "pids.max").exists() else None
        )
        for name, value in (("memory.oom.group", "1"), ("memory.swap.max", "0")):
            with contextlib.suppress(OSError):  # version 1 has neither
                (folder / name).write_text(value)
        self._oom_kills_before = 0

    def add_process(self, pid: int, limits: Limits) -> bool:
        """Move a process and its children into the group; False if the kernel does not allow it."""
        try:
            os.write(self._limit, str(int(limits.memory_mb * MEGABYTE)).encode())
            if self._processes is not None:
                os.write(self._processes, str(int(limits.processes)).encode())
            self._oom_kills_before = self._oom_kills()
            os.write(self._members, str(pid).encode())
            for child in process_tree(pid)[1:]:  # later ones start in the group
                os.write(self._members, str(child).encode())
        except PermissionError:  # we may not move it out of its group
            return False
        except ProcessLookupError:  # it has ended, which its session will see
            return True
        return True

    def hit_limit(self) -> bool:
        """Has the kernel killed a process of the program for its memory?"""
        return self._oom_kills() > self._oom_kills_before

    def _oom_kills(self) -> int:
        lines = (line.split() for line in os.pread(self._events, 4096, 0).decode().splitlines())
        return next((int(words[1]) for words in lines if words[0] == "oom_kill"), 0)


def create(name: str) -> Group | None:
    """A new group as close to ours as possible, or None."""
    remove_stale()
    for parent in _parent_groups():
        folder = parent / f"{_PREFIX}{os.getpid()}-{name}"
        try:
            folder.mkdir(exist_ok=True)
        except OSError:
            continue
        try:
            return Group(folder)
        except (StopIteration, OSError):  # no memory controller, or no permission
            with contextlib.suppress(OSError):
                folder.rmdir()
    return None


def remove_stale() -> None:
    """Remove groups whose worker is gone: workers are killed, and are no longer root."""
    for parent in _parent_groups():
        for old in parent.glob(f"{_PREFIX}*"):
            if not Path("/proc", old.name.removeprefix(_PREFIX).partition("-")[0]).exists():
                with contextlib.suppress(OSError):
                    old.rmdir()


def _parent_groups() -> Iterator[Path]:
    """Our own group and its parents. In version 2 a group with processes cannot have limited groups below it."""
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except FileNotFoundError:
        return
    for _, controllers, path in lines:
        if controllers in ("", "memory"):
            root = ROOT / controllers
            own = root / path.lstrip("/")
            yield from (
                group
                for group in (own, *own.parents)
                if group.is_relative_to(root) and group.is_dir()
            )
