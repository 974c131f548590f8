"""Worker processes that answer JSON lines, each killed and replaced when it is late or dead.

A hard time-out needs a process: a thread cannot be stopped, and an alarm signal does nothing off the main thread.
Answers come back in the order of the jobs, whoever finished first. A worker ends with the process that started it, even
where that was killed without a chance to say so.
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


class Late(Exception):
    """No answer within the time-out; the worker was killed."""


class Died(Exception):
    """The worker's process ended on a job."""


class Worker:
    """One child process, started when first asked. `starter` is a thread that lives as long as the worker may: to the
    kernel a child's parent is a thread, and the child ends with it."""

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
                raise Died(f"{' '.join(self._command[1:4])} ended between jobs") from None
            return self._line(seconds)
        except BaseException:
            self.close()  # whatever it still has to say belongs to no job
            raise

    def _start(self) -> None:
        self._process = self._starter.submit(
            subprocess.Popen, self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        ).result()
        self._buffer = b""
        ready = self._line(START_SECONDS)
        if ready != {"ready": True}:
            raise Died(f"{' '.join(self._command[1:4])} did not start: {ready}")

    def _line(self, seconds: float) -> Any:
        assert self._process is not None and self._process.stdout is not None
        out, until = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                raise Late(f"no answer within {seconds:.3g} s")
            piece = os.read(out, 1 << 16)
            if not piece:
                raise Died(f"{' '.join(self._command[1:4])} ended with status {self._process.wait()}")
            self._buffer += piece
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
                    continue  # what was still buffered for a dead worker
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
        """The answer, or Late, or Died; waiting for an idle worker does not count."""
        if self._closed:
            raise ValueError("the pool is closed; make another")
        worker = self._idle.get()
        try:
            return worker.ask(job, seconds)
        finally:
            self._idle.put(worker)

    def map(self, jobs: Sequence[Any], seconds: float) -> list[Any]:
        """An answer for each job; where there is none, the exception that says why."""
        if not jobs:
            return []
        with ThreadPoolExecutor(min(self.size, len(jobs)), thread_name_prefix="pool") as threads:
            return list(threads.map(lambda job: self._caught(job, seconds), jobs))

    def _caught(self, job: Any, seconds: float) -> Any:
        try:
            return self.ask(job, seconds)
        except (Late, Died) as error:
            return error

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.close()
            self._starter.shutdown()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


def module_command(module: str, *words: str) -> list[str]:
    """How to start a module of this package as a worker, on the interpreter that runs us."""
    return [sys.executable, "-m", module, *words]


def ready() -> None:
    """A worker's first word; it takes jobs from here on, and from here on the kernel ends it with whoever started it.

    Said when its user is no longer going to change, which would undo the second. One whose starter is gone already gets
    no job and finds its input at an end.
    """
    if ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0) != 0:
        raise RuntimeError("prctl(PR_SET_PDEATHSIG) failed, so this worker could outlive the run that started it")
    print(json.dumps({"ready": True}), flush=True)
