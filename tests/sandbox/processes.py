"""Processes as the system shows them, for tests that watch programs live and end."""

from __future__ import annotations

import os
from pathlib import Path


def descendants(root: int) -> list[int]:
    """A process and all below it."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                waiting += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
        except OSError:
            continue
        found.append(pid)
    return found


def alive(pid: int) -> bool:
    """Not one that has ended and waits for process 1 to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False
