"""One sandboxed process: start it, exchange frames with a deadline, and kill it reliably."""

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
from ascent.sandbox.isolation import FOLDERS, Interpreter, bwrap_command, environment
from ascent.sandbox.limits import MEGABYTE, Limits

Mode = Literal["bubblewrap", "none"]
Side = Literal["program", "tests"]
# Starting takes 0.1 s; beyond this the machine has a problem, not the program.
START_SECONDS = 30.0
POLL_SECONDS = 0.02


class ProgramEnded(Exception):
    """The sandboxed side gave no valid reply. `kind`: time, memory, output, died or garbage."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


class SandboxError(Exception):
    """The sandbox itself failed, before the program ran."""


def driver_source() -> str:
    """The source that runs inside: values.py, then driver.py."""
    texts = [Path(str(module.__file__)).read_text() for module in (values, driver)]
    future, shared = "from __future__ import annotations\n", "from ascent.sandbox.values import"
    lines = [line for text in texts for line in text.splitlines(keepends=True)]
    return future + "".join(
        line for line in lines if line != future and not line.startswith(shared)
    )


class Session:
    """A driver process in bubblewrap, or without isolation in mode none."""

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
        self._max_frame_bytes = int(limits.output_kb * 1024) + 4096
        self._buffer = bytearray()
        self._init_fd: int | None = None
        self._init_pid: int | None = None
        self._group = (groups or {}).get(side)
        self._stop_reason: ProgramEnded | SandboxError | None = None
        self._closing, self._watcher = (
            threading.Event(),
            threading.Thread(target=self._watch, daemon=True),
        )
        self._home: str | None = None
        self._errors = os.memfd_create("stderr")
        inner = ["-I", "-S", "-B", "-c", source, side, json.dumps(limits.as_dict())]
        if mode == "bubblewrap":
            self._start_wrapped(bwrap, interpreter, inner)
        else:
            self._home = tempfile.mkdtemp(prefix="ascent-program-")
            self._spawn(
                [str(interpreter.executable), *inner], environment(self._home), self._home, ()
            )
        try:
            ready = self.receive(START_SECONDS)
        except ProgramEnded as error:
            stderr = os.pread(self._errors, 2000, 0).decode("utf-8", "replace").strip()
            self.close()
            raise SandboxError(f"the sandbox did not start: {stderr or error}") from error
        assert ready == {"ready": True}
        self._watcher.start()

    def _start_wrapped(self, bwrap: str, interpreter: Interpreter, inner: list[str]) -> None:
        filter_fd = os.memfd_create("filter")
        os.write(filter_fd, seccomp.program(platform.machine()))
        os.lseek(filter_fd, 0, os.SEEK_SET)
        info, info_fd = os.pipe()
        descriptors = {"seccomp": filter_fd, "info-fd": info_fd}
        arguments = bwrap_command(
            bwrap, interpreter, self._limits, descriptors=descriptors, inner=inner
        )
        self._spawn(arguments, {}, "/", tuple(descriptors.values()))
        for descriptor in descriptors.values():
            os.close(descriptor)
        with os.fdopen(info, "rb") as pipe:
            text = pipe.read()
        if text:  # the namespace's init process: when it ends, all others do
            self._init_pid = json.loads(text)["child-pid"]
            with contextlib.suppress(ProcessLookupError):
                self._init_fd = os.pidfd_open(self._init_pid)
            # It has at most one child, the interpreter, which is starting.
            if self._group is not None and not self._group.add_process(
                self._init_pid, self._limits
            ):
                self._group = None

    def _spawn(
        self, arguments: list[str], env: dict[str, str], cwd: str, keep: tuple[int, ...]
    ) -> None:
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=env,
            cwd=cwd,
            start_new_session=True,
            pass_fds=keep,
            bufsize=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)

    def ask(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        self.send(message, seconds)
        return self.receive(seconds)

    def send(self, message: dict[str, Any], seconds: float) -> None:
        """Send a frame; a program that does not read times out."""
        data = json.dumps(message).encode()
        view = memoryview(struct.pack(">I", len(data)) + data)
        deadline = time.monotonic() + seconds
        while view:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise ProgramEnded("time", f"did not read its input within {seconds:.3g} s")
            if select.select([], [self._in], [], remaining)[1]:
                try:
                    view = view[os.write(self._in, view) :]
                except BrokenPipeError:
                    raise self._exit_reason("the program's process is gone") from None

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next frame."""
        deadline = time.monotonic() + seconds
        while True:
            frame = self._frame()
            if frame is not None:
                return frame
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise ProgramEnded("time", f"no answer within {seconds:.3g} s")
            if select.select([self._out], [], [], remaining)[0]:
                piece = os.read(self._out, 1 << 16)
                if not piece:
                    raise self._exit_reason("the program ended its process")
                self._buffer += piece

    def _frame(self) -> dict[str, Any] | None:
        if len(self._buffer) < 4:
            return None
        (length,) = struct.unpack(">I", self._buffer[:4])
        if length > self._max_frame_bytes:
            raise ProgramEnded(
                "output", f"an answer of {length} bytes, more than {self._max_frame_bytes}"
            )
        if len(self._buffer) < 4 + length:
            return None
        text = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        try:
            frame = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProgramEnded("garbage", f"an answer that is no JSON: {error}") from error
        if not isinstance(frame, dict):
            raise ProgramEnded("garbage", "an answer that is no object")
        return frame

    def _watch(self) -> None:
        """Poll the program's memory until the end, also between requests."""
        most = self._limits.memory_mb
        while self._stop_reason is None and not self._closing.wait(POLL_SECONDS):
            try:
                used = memory.used_bytes(self._process.pid, self._init_pid, FOLDERS)
                if used > most * MEGABYTE:
                    self._stop_reason = ProgramEnded(
                        "memory", f"{used >> 20} MB in all, more than {most}"
                    )
                else:
                    self._stop_reason = self._check_oom()
            except Exception as error:
                self._stop_reason = SandboxError(
                    f"the program's memory could not be measured: {error!r}"
                )
        if self._stop_reason is not None:
            self._kill()

    def _check_oom(self) -> ProgramEnded | None:
        if self._group is not None and self._group.hit_limit():
            return ProgramEnded("memory", f"the kernel stopped it at {self._limits.memory_mb} MB")
        return None

    def _exit_reason(self, detail: str) -> ProgramEnded | SandboxError:
        """Why the process is gone."""
        return self._stop_reason or self._check_oom() or ProgramEnded("died", detail)

    def _kill(self) -> None:
        if self._init_fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init_fd, signal.SIGKILL)
        else:
            for pid in memory.process_tree(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill all processes of the sandbox and wait until they are gone."""
        self._closing.set()
        if self._watcher.ident is not None:
            self._watcher.join()
        if self._init_fd is not None or self._process.poll() is None:
            self._kill()
        # bubblewrap reaps that process and exits; killed at once, it would leave a zombie to process 1.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        for pid in memory.process_tree(self._process.pid) if self._process.poll() is None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        if self._init_fd is not None:
            gone = select.select([self._init_fd], [], [], START_SECONDS)[0]
            os.close(self._init_fd)
            self._init_fd = None
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
