"""Start the ranks of a run on this machine, with the variables that torchrun sets. It imports no torch."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType

POLL, GRACE, GRACE_AFTER_KILL = (
    0.1,
    25.0,
    8.0,
)  # seconds: how long the others may take to end by themselves
FORWARDED = (signal.SIGINT, signal.SIGTERM)


class RanksFailed(RuntimeError):
    """The ranks of a run failed; rank 0 has said why."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the run failed with exit status {status}; its ranks have said why")
        self.status = status


def launch(command: Sequence[str], processes: int, *, say: Callable[[str], None]) -> int:
    """Run a command in `processes` ranks and wait for them; returns the exit status.

    Signals go to rank 0, which stops the others. If a rank fails, the others end by themselves, or are ended.
    """
    if processes < 1:
        raise ValueError(f"processes={processes}; it must be at least 1")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError(
            "processes starts ranks, but this process is one already; use either --processes or torchrun"
        )
    ranks = [
        _start(command, rank, processes, port)
        for port in [_free_port()]
        for rank in range(processes)
    ]

    def forward(number: int, frame: FrameType | None) -> None:
        if ranks[0].poll() is None:
            ranks[0].send_signal(number)

    before = {each: signal.signal(each, forward) for each in FORWARDED}
    try:
        return _wait(ranks, say)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for process in ranks:
            if process.poll() is None:
                process.kill()


def _start(command: Sequence[str], rank: int, count: int, port: int) -> subprocess.Popen[bytes]:
    variables = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    # In sessions of their own: Ctrl-C in the terminal reaches this process, which passes it on once.
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    )


def _wait(ranks: Sequence[subprocess.Popen[bytes]], say: Callable[[str], None]) -> int:
    """Wait for all; the status of rank 0, or else of the first rank that failed."""
    failed: tuple[int, int] | None = None  # the rank and its status
    deadline = float("inf")
    while any(process.poll() is None for process in ranks):
        bad = [(rank, process.returncode) for rank, process in enumerate(ranks) if process.poll()]
        if bad and failed is None:
            failed = bad[0]
            deadline = time.monotonic() + (GRACE_AFTER_KILL if failed[1] < 0 else GRACE)
        if time.monotonic() > deadline:
            for process in ranks:
                process.kill()
        time.sleep(POLL)
    failed = failed or next(
        ((rank, each.returncode) for rank, each in enumerate(ranks) if each.returncode), None
    )
    if failed is None:
        return 0
    rank, status = failed
    if status < 0:
        say(f"rank {rank} was killed by {signal.Signals(-status).name}; all ranks stop")
        return 128 - status
    if ranks[0].returncode < 0:  # ended here, before it could say why
        say(f"rank {rank} failed with exit status {status}; all ranks stop")
    return ranks[0].returncode if ranks[0].returncode > 0 else status


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ascent_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "ascent", *words]
