"""One sandboxed process: start it, exchange frames with it under a deadline, and be sure that it is dead."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from ascent.sandbox import driver, seccomp, values
from ascent.sandbox.isolation import Interpreter, command, environment
from ascent.sandbox.limits import MEGABYTE, Limits

Mode = Literal["bubblewrap", "none"]
Side = Literal["program", "tests"]
# Starting takes 0.1 s; more than this means that the machine, not the program, has a problem.
START_SECONDS = 30.0
LOOK_SECONDS = 0.05

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Ended(Exception):
    """The sandboxed side gave no answer. `kind` is one of: time, memory, output, died, garbage."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


class Broken(Exception):
    """The sandbox itself failed, before the program had its say."""


def driver_source() -> str:
    """The text that runs inside: values.py, then driver.py."""
    texts = [Path(str(module.__file__)).read_text() for module in (values, driver)]
    future, shared = "from __future__ import annotations\n", "from ascent.sandbox.values import"
    lines = [line for text in texts for line in text.splitlines(keepends=True)]
    return future + "".join(line for line in lines if line != future and not line.startswith(shared))


class Session:
    """A driver behind bubblewrap (or, with mode none, without anything around it)."""

    def __init__(
        self, side: Side, limits: Limits, *, mode: Mode, bwrap: str, interpreter: Interpreter, source: str
    ) -> None:
        self._limits = limits
        self._most = int(limits.output_kb * 1024) + 4096
        self._buffer = bytearray()
        self._next_look = time.monotonic() + LOOK_SECONDS
        self._init: int | None = None
        self._home: str | None = None
        self._errors = os.memfd_create("stderr")
        inner = ["-I", "-S", "-B", "-c", source, side, json.dumps(limits.plain())]
        if mode == "bubblewrap":
            self._start_wrapped(bwrap, interpreter, inner)
        else:
            self._home = tempfile.mkdtemp(prefix="ascent-program-")
            self._spawn([str(interpreter.executable), *inner], environment(self._home), self._home, ())
        try:
            ready = self.receive(START_SECONDS)
        except Ended as error:
            said = os.pread(self._errors, 2000, 0).decode("utf-8", "replace").strip()
            self.close()
            raise Broken(f"the sandbox did not start: {said or error}") from error
        assert ready == {"ready": True}

    def _start_wrapped(self, bwrap: str, interpreter: Interpreter, inner: list[str]) -> None:
        filter_fd = os.memfd_create("filter")
        os.write(filter_fd, seccomp.program(platform.machine()))
        os.lseek(filter_fd, 0, os.SEEK_SET)
        info, info_fd = os.pipe()
        words = command(bwrap, interpreter, self._limits, filter_fd=filter_fd, info_fd=info_fd, inner=inner)
        self._spawn(words, {}, "/", (filter_fd, info_fd))
        os.close(filter_fd)
        os.close(info_fd)
        with os.fdopen(info, "rb") as pipe:
            text = pipe.read()
        if text:  # the first process of the new namespace: when it is gone, so is every other in there
            with contextlib.suppress(ProcessLookupError):
                self._init = os.pidfd_open(json.loads(text)["child-pid"])

    def _spawn(self, words: list[str], env: dict[str, str], cwd: str, keep: tuple[int, ...]) -> None:
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=env, cwd=cwd,
            start_new_session=True, pass_fds=keep, bufsize=0,
        )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)

    def ask(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        self.send(message, seconds)
        return self.receive(seconds)

    def send(self, message: dict[str, Any], seconds: float) -> None:
        """Never waits for a program that does not read."""
        data = json.dumps(message).encode()
        view = memoryview(struct.pack(">I", len(data)) + data)
        until = time.monotonic() + seconds
        while view:
            left = until - time.monotonic()
            if left <= 0:
                raise Ended("time", f"did not read its input within {seconds:.3g} s")
            if select.select([], [self._in], [], left)[1]:
                try:
                    view = view[os.write(self._in, view) :]
                except BrokenPipeError:
                    raise Ended("died", "the program's process is gone") from None

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next frame, looking at the tree's memory meanwhile."""
        until = time.monotonic() + seconds
        while True:
            frame = self._frame()
            if frame is not None:
                return frame
            left = until - time.monotonic()
            if left <= 0:
                raise Ended("time", f"no answer within {seconds:.3g} s")
            if select.select([self._out], [], [], min(left, LOOK_SECONDS))[0]:
                piece = os.read(self._out, 1 << 16)
                if not piece:
                    raise Ended("died", "the program ended its process")
                self._buffer += piece
            if time.monotonic() > self._next_look:
                self._look()

    def _frame(self) -> dict[str, Any] | None:
        if len(self._buffer) < 4:
            return None
        (length,) = struct.unpack(">I", self._buffer[:4])
        if length > self._most:
            raise Ended("output", f"an answer of {length} bytes, more than {self._most}")
        if len(self._buffer) < 4 + length:
            return None
        text = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        try:
            frame = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Ended("garbage", f"an answer that is no JSON: {error}") from error
        if not isinstance(frame, dict):
            raise Ended("garbage", "an answer that is no object")
        return frame

    def _look(self) -> None:
        """The limit of the kernel binds one process; many small ones add up."""
        self._next_look = time.monotonic() + LOOK_SECONDS
        resident = sum(_resident(pid) for pid in _tree(self._process.pid))
        if resident > self._limits.memory_mb * MEGABYTE:
            raise Ended("memory", f"{resident >> 20} MB in all processes, more than {self._limits.memory_mb}")

    def close(self) -> None:
        """Kill everything in there and wait until it is gone."""
        if self._init is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
            # bubblewrap reaps that process and leaves; killed at once, it would leave a zombie to whoever is process 1.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        for pid in _tree(self._process.pid) if self._process.poll() is None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        if self._init is not None:
            gone = select.select([self._init], [], [], START_SECONDS)[0]
            os.close(self._init)
            self._init = None
            if not gone:
                raise RuntimeError(
                    f"a sandbox's processes outlived SIGKILL by {START_SECONDS:g} s: the kernel holds them"
                )
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        os.close(self._errors)
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)


def _tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                waiting += [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (FileNotFoundError, ProcessLookupError):
        return 0
