"""Runs a command until it ends or its parent does: `python supervise.py [--forward] PARENT COMMAND...`.

A server must not outlive its run, even one that was killed with SIGKILL. The command gets a process group of its own,
so that the processes it starts end with it; on Linux it also ends if this process is killed. SIGTERM and SIGINT end the
command, within TERMINATE_SECONDS. With --forward they are passed on to it instead, and it ends when it likes, as a
trainer that saves first; SIGHUP then ends it. Standard library only: it is run as a file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

POLL_SECONDS = 0.5
TERMINATE_SECONDS = 15.0  # until SIGKILL
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SET_PARENT_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


def supervise(parent: int, command: list[str], *, forward: bool = False) -> int:
    received: list[int] = []
    for number in SIGNALS:
        signal.signal(number, lambda which, _: received.append(which))
    signal.pthread_sigmask(
        signal.SIG_UNBLOCK, SIGNALS
    )  # Ray's workers block SIGINT, and a mask is inherited
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_end_with_this_process
    )
    stopping = False
    while process.poll() is None and os.getppid() == parent and not stopping:
        while received:
            which = received.pop(0)
            if forward and which != signal.SIGHUP:
                process.send_signal(which)
            else:
                stopping = True
        time.sleep(POLL_SECONDS)
    end_group(process)
    return (
        process.returncode if process.returncode >= 0 else 128 - process.returncode
    )  # as shells report a signal


def _end_with_this_process() -> None:
    """Whoever kills this process with SIGKILL, as Ray does with the children of a worker, must not free the command."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End the command and whatever it has started."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(TERMINATE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    forward = sys.argv[1] == "--forward"
    words = sys.argv[2:] if forward else sys.argv[1:]
    sys.exit(supervise(int(words[0]), words[1:], forward=forward))
