"""Functions run by several ranks, each a process forked from a server that has imported everything already."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

# CUDA cannot be used in a fork of a process that has used it.
_server = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "forkserver")
_server.set_forkserver_preload(["tests.end_to_end.warm"])


class Group:
    """Ranks at work. `folder` gets what each prints and returns."""

    def __init__(
        self, count: int, folder: Path, function: Callable[..., Any], *arguments: Any
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.folder = folder
        self.ranks: list[Any] = [
            _server.Process(target=_work, args=(rank, count, port, folder, function, arguments))
            for rank in range(count)
        ]
        for each in self.ranks:
            each.start()

    def wait(self, seconds: float = 300) -> list[int]:
        """The exit codes; minus the signal of a rank that was killed."""
        deadline = time.monotonic() + seconds
        for each in self.ranks:
            each.join(max(0.1, deadline - time.monotonic()))
        late = [rank for rank, each in enumerate(self.ranks) if each.exitcode is None]
        for rank in late:
            self.ranks[rank].kill()
        assert not late, f"ranks {late} did not end within {seconds:.0f} s\n{self.said()}"
        return [int(each.exitcode) for each in self.ranks]

    def said(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("rank-*.log")))


def run_in_ranks(
    count: int, folder: Path, function: Callable[..., Any], *arguments: Any, seconds: float = 300
) -> list[Any]:
    """What the function returns in every rank."""
    group = Group(count, folder, function, *arguments)
    codes = group.wait(seconds)
    assert codes == [0] * count, f"exit codes {codes}\n{group.said()}"
    return [pickle.loads((folder / f"rank-{rank}.pickle").read_bytes()) for rank in range(count)]


def _work(
    rank: int, count: int, port: int, folder: Path, function: Callable[..., Any], arguments: Any
) -> None:
    log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if count > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    try:
        found = function(*arguments)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    (folder / f"rank-{rank}.pickle").write_bytes(pickle.dumps(found))
