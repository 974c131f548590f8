"""A control group for a program, where the system lets us make one: the kernel then counts and limits its memory.

That is: as root, or where a group was delegated to this user (`systemd-run --user --scope`), and the memory controller
is on for groups beside or below ours. Elsewhere there is none, and looking (memory.py) does what it can.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ascent.sandbox.limits import MEGABYTE, Limits
from ascent.sandbox.memory import tree

ROOT = Path("/sys/fs/cgroup")
_PREFIX = "ascent-"
# (the file that takes the limit, the one that tells of ends): version 2, then 1.
_FILES = (("memory.max", "memory.events"), ("memory.limit_in_bytes", "memory.oom_control"))


class Group:
    """One group of one worker, used by one program after another. Its files are opened as whoever may write them."""

    def __init__(self, folder: Path) -> None:
        limit, events = next(pair for pair in _FILES if (folder / pair[0]).exists())
        self._limit, self._members = (os.open(folder / name, os.O_WRONLY) for name in (limit, "cgroup.procs"))
        self._events = os.open(folder / events, os.O_RDONLY)
        self._processes = os.open(folder / "pids.max", os.O_WRONLY) if (folder / "pids.max").exists() else None
        for name, value in (("memory.oom.group", "1"), ("memory.swap.max", "0")):
            with contextlib.suppress(OSError):  # version 1 has neither, and without swap there is no second
                (folder / name).write_text(value)
        self._ends_before = 0

    def take(self, pid: int, limits: Limits) -> bool:
        """Move a process in, with its children and all that they will start; False where the kernel does not let us."""
        try:
            os.write(self._limit, str(int(limits.memory_mb * MEGABYTE)).encode())
            if self._processes is not None:
                os.write(self._processes, str(int(limits.processes)).encode())
            self._ends_before = self._ends()
            os.write(self._members, str(pid).encode())
            for child in tree(pid)[1:]:  # a later one is born in the group
                os.write(self._members, str(child).encode())
        except PermissionError:  # not ours to move from where it is
            return False
        except ProcessLookupError:  # it has ended, which whoever talks to it will see
            return True
        return True

    def full(self) -> bool:
        """Has the kernel ended a process of the program because its memory was used up?"""
        return self._ends() > self._ends_before

    def _ends(self) -> int:
        lines = (line.split() for line in os.pread(self._events, 4096, 0).decode().splitlines())
        return next((int(words[1]) for words in lines if words[0] == "oom_kill"), 0)


def make(name: str) -> Group | None:
    """A new group as near to ours as can be, or None."""
    sweep()
    for parent in _places():
        folder = parent / f"{_PREFIX}{os.getpid()}-{name}"
        try:
            folder.mkdir(exist_ok=True)
        except OSError:
            continue
        try:
            return Group(folder)
        except (StopIteration, OSError):  # no memory controller here, or not ours
            with contextlib.suppress(OSError):
                folder.rmdir()
    return None


def sweep() -> None:
    """Remove groups whose worker is gone; it could not itself, being killed, and no longer root."""
    for parent in _places():
        for old in parent.glob(f"{_PREFIX}*"):
            if not Path("/proc", old.name.removeprefix(_PREFIX).partition("-")[0]).exists():
                with contextlib.suppress(OSError):
                    old.rmdir()


def _places() -> Iterator[Path]:
    """Our own group and those above it. In version 2 one that has processes cannot have groups with limits below it."""
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except FileNotFoundError:
        return
    for _, controllers, path in lines:
        if controllers in ("", "memory"):
            root = ROOT / controllers
            own = root / path.lstrip("/")
            yield from (place for place in (own, *own.parents) if place.is_relative_to(root) and place.is_dir())
