"""Runs a command until it ends or the process that started it does: `python supervise.py PARENT COMMAND...`.

A server must not outlive its run, even one that was killed with SIGKILL. The command gets a process group of its own,
so that the processes it starts end with it. Standard library only: it is run as a file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

POLL_SECONDS = 0.5
TERMINATE_SECONDS = 15.0  # until SIGKILL


def supervise(parent: int, command: list[str]) -> int:
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: stopping.append(received))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None and os.getppid() == parent and not stopping:
        time.sleep(POLL_SECONDS)
    end_group(process)
    return process.returncode


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End the command and whatever it has started."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(TERMINATE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    sys.exit(supervise(int(sys.argv[1]), sys.argv[2:]))
