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
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ascent.sandbox import driver, memory, seccomp, values
from ascent.sandbox.cgroups import Group
from ascent.sandbox.isolation import FOLDERS, Interpreter, command, environment
from ascent.sandbox.limits import MEGABYTE, Limits

Mode = Literal["bubblewrap", "none"]
Side = Literal["program", "tests"]
# Starting takes 0.1 s; more than this means that the machine, not the program, has a problem.
START_SECONDS = 30.0
LOOK_SECONDS = 0.02


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
        self,
        side: Side,
        limits: Limits,
        *,
        mode: Mode,
        bwrap: str,
        interpreter: Interpreter,
        source: str,
        groups: Mapping[Side, Group | None] | None = None,
    ) -> None:
        self._limits = limits
        self._most = int(limits.output_kb * 1024) + 4096
        self._buffer = bytearray()
        self._init: int | None = None
        self._first: int | None = None
        self._group = (groups or {}).get(side)
        self._over: Ended | Broken | None = None
        self._closing, self._watcher = threading.Event(), threading.Thread(target=self._watch, daemon=True)
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
        self._watcher.start()

    def _start_wrapped(self, bwrap: str, interpreter: Interpreter, inner: list[str]) -> None:
        filter_fd = os.memfd_create("filter")
        os.write(filter_fd, seccomp.program(platform.machine()))
        os.lseek(filter_fd, 0, os.SEEK_SET)
        info, info_fd = os.pipe()
        descriptors = {"seccomp": filter_fd, "info-fd": info_fd}
        words = command(bwrap, interpreter, self._limits, descriptors=descriptors, inner=inner)
        self._spawn(words, {}, "/", tuple(descriptors.values()))
        for descriptor in descriptors.values():
            os.close(descriptor)
        with os.fdopen(info, "rb") as pipe:
            text = pipe.read()
        if text:  # the first process of the new namespace: when it is gone, so is every other in there
            self._first = json.loads(text)["child-pid"]
            with contextlib.suppress(ProcessLookupError):
                self._init = os.pidfd_open(self._first)
            # It has one child at most, the interpreter, which starts while we wait here for the kernel.
            if self._group is not None and not self._group.take(self._first, self._limits):
                self._group = None

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
                    raise self._gone("the program's process is gone") from None

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next frame."""
        until = time.monotonic() + seconds
        while True:
            frame = self._frame()
            if frame is not None:
                return frame
            left = until - time.monotonic()
            if left <= 0:
                raise Ended("time", f"no answer within {seconds:.3g} s")
            if select.select([self._out], [], [], left)[0]:
                piece = os.read(self._out, 1 << 16)
                if not piece:
                    raise self._gone("the program ended its process")
                self._buffer += piece

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

    def _watch(self) -> None:
        """Look at the program's memory until the end: it may work on while nobody asks it and its answer is read."""
        most = self._limits.memory_mb
        while self._over is None and not self._closing.wait(LOOK_SECONDS):
            try:
                held = memory.held(self._process.pid, self._first, FOLDERS)
                if held > most * MEGABYTE:
                    self._over = Ended("memory", f"{held >> 20} MB in all, more than {most}")
                else:
                    self._over = self._full()
            except Exception as error:
                self._over = Broken(f"the program's memory could not be looked at: {error!r}")
        if self._over is not None:
            self._kill()

    def _full(self) -> Ended | None:
        if self._group is not None and self._group.full():
            return Ended("memory", f"the kernel stopped it at {self._limits.memory_mb} MB")
        return None

    def _gone(self, detail: str) -> Ended | Broken:
        """Why there is nobody to talk to."""
        return self._over or self._full() or Ended("died", detail)

    def _kill(self) -> None:
        if self._init is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
        else:
            for pid in memory.tree(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill everything in there and wait until it is gone."""
        self._closing.set()
        if self._watcher.ident is not None:
            self._watcher.join()
        if self._init is not None or self._process.poll() is None:
            self._kill()
        # bubblewrap reaps that process and leaves; killed at once, it would leave a zombie to whoever is process 1.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        for pid in memory.tree(self._process.pid) if self._process.poll() is None else ():
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
