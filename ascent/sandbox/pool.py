"""Worker processes with JSON lines in and out, each killed and replaced when it is late or dead.

A hard time-out needs a process: a thread cannot be stopped, and an alarm signal only works in the main thread. Replies
keep the order of the jobs. A worker ends with its parent process, even if that is killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from types import TracebackType
from typing import Any

START_SECONDS = 60.0
_SET_PARENT_DEATH_SIGNAL = 1


class WorkerTimeout(Exception):
    """No reply in time; the worker was killed."""


class WorkerDied(Exception):
    """The worker's process ended during a job."""


class Worker:
    """One child process, started at its first job. `starter` is a thread that outlives the worker: for the kernel a
    child's parent is a thread, and the child ends with it."""

    def __init__(self, command: Sequence[str], starter: Executor) -> None:
        self._command, self._starter = list(command), starter
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    def ask(self, job: Any, seconds: float) -> Any:
        try:
            if self._process is None:
                self._start()
            assert self._process is not None and self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(job).encode() + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                raise WorkerDied(f"{' '.join(self._command[1:4])} ended between jobs") from None
            return self._read_line(seconds)
        except BaseException:
            self.close()  # a late reply must not go to the next job
            raise

    def _start(self) -> None:
        self._process = self._starter.submit(
            subprocess.Popen,
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        ).result()
        self._buffer = b""
        message = self._read_line(START_SECONDS)
        if message != {"ready": True}:
            raise WorkerDied(f"{' '.join(self._command[1:4])} did not start: {message}")

    def _read_line(self, seconds: float) -> Any:
        assert self._process is not None and self._process.stdout is not None
        out, deadline = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._buffer:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([out], [], [], remaining)[0]:
                raise WorkerTimeout(f"no answer within {seconds:.3g} s")
            chunk = os.read(out, 1 << 16)
            if not chunk:
                raise WorkerDied(
                    f"{' '.join(self._command[1:4])} ended with status {self._process.wait()}"
                )
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def close(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # buffered input of a dead worker
        self._process = None


class Pool:
    """`size` workers. `ask` may be called from any thread; `map` keeps the jobs' order."""

    def __init__(self, command: Callable[[int], Sequence[str]], size: int) -> None:
        if size < 1:
            raise ValueError(f"a pool of {size} workers; give at least 1")
        self.size = size
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="starter")
        self._workers = [Worker(command(slot), self._starter) for slot in range(size)]
        for worker in self._workers:
            self._idle.put(worker)
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, job: Any, seconds: float) -> Any:
        """The reply; WorkerTimeout or WorkerDied without one. Waiting for an idle worker does not count."""
        if self._closed:
            raise ValueError("the pool is closed; create another")
        worker = self._idle.get()
        try:
            return worker.ask(job, seconds)
        finally:
            self._idle.put(worker)

    def map(self, jobs: Sequence[Any], seconds: float) -> list[Any]:
        """A reply for each job, or the exception that replaces it."""
        if not jobs:
            return []
        with ThreadPoolExecutor(min(self.size, len(jobs)), thread_name_prefix="pool") as threads:
            return list(threads.map(lambda job: self._ask_or_error(job, seconds), jobs))

    def _ask_or_error(self, job: Any, seconds: float) -> Any:
        try:
            return self.ask(job, seconds)
        except (WorkerTimeout, WorkerDied) as error:
            return error

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.close()
            self._starter.shutdown()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()


def module_command(module: str, *words: str) -> list[str]:
    """The command that starts a module of this package as a worker."""
    return [sys.executable, "-m", module, *words]


def signal_ready() -> None:
    """Tell the pool that this worker takes jobs; from now on the kernel kills it with its parent.

    Called after the last change of user, which would reset that. A worker whose parent is gone already reads the end of
    its input.
    """
    if ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0) != 0:
        raise RuntimeError(
            "prctl(PR_SET_PDEATHSIG) failed, so this worker could outlive the run that started it"
        )
    print(json.dumps({"ready": True}), flush=True)
