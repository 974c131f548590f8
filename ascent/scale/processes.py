"""What an actor holds: one process of ours on its node, which ends with the actor. Ray itself is not needed here.

An actor only starts its process and reports on it. Tokens, weights and gradients never pass through Ray.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ascent.engines import supervise
from ascent.engines.server_process import (
    START_SECONDS,
    ServerCommand,
    ServerProcess,
    ascent_command,
    free_port,
)
from ascent.http_client import Client, RetryPolicy, ServerFailed
from ascent.runs.sampler_files import WantedServers

HEALTH_PERIOD, HEALTH_TIMEOUT, HEALTH_TRIES = (
    5.0,
    30.0,
    3,
)  # of a server: seconds, seconds, failures in a row


@dataclass(frozen=True)
class Status:
    """Of a process: `url` once a server answers, `ended` with the reason, `output` since it was last asked."""

    node: str = ""
    url: str | None = None
    ended: str | None = None
    exit_status: int | None = None
    output: bytes = b""


def node_address() -> str:
    """The address of this node, as other nodes know it."""
    import ray

    return str(ray.util.get_node_ip_address())


class RankProcess:
    """A rank of the trainer. It is started in two steps, because all ranks need the address of the first."""

    def __init__(self, host: str | None = None) -> None:
        self._host = host or node_address()
        self._process: subprocess.Popen[bytes] | None = None
        self._output, self._lock = bytearray(), threading.Lock()

    def address(self) -> tuple[str, int]:
        """A free port of this node, where the ranks meet."""
        return self._host, free_port(self._host)

    def start(self, words: list[str], environment: Mapping[str, str], folder: str) -> None:
        """`ascent WORDS...` in `folder`, which must be on this node, too."""
        if not Path(folder).is_dir():
            raise ValueError(
                f"the folder {folder} is not on the node {self._host}; start the run from a folder that all nodes see"
            )
        command = [sys.executable, "-m", "ascent", *words]
        self._process = subprocess.Popen(
            [sys.executable, supervise.__file__, "--forward", str(os.getpid()), *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(environment),
            start_new_session=True,
        )
        self._reader = threading.Thread(
            target=self._read, args=(self._process,), daemon=True, name="output of a rank"
        )
        self._reader.start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout:
            while chunk := os.read(process.stdout.fileno(), 1 << 16):
                with self._lock:
                    self._output += chunk

    def status(self) -> Status:
        assert self._process is not None, "it is started before it is asked"
        code = self._process.poll()
        if code is not None:
            self._reader.join(5.0)  # the last words
        with self._lock:
            output, self._output = bytes(self._output), bytearray()
        return Status(
            self._host, None, None if code is None else f"it ended with status {code}", code, output
        )

    def send_signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def close(self) -> None:
        """End it, by force if it does not end by itself."""
        if self._process is None:
            return
        self.send_signal(signal.SIGHUP)
        try:
            self._process.wait(2 * supervise.TERMINATE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class PlacedServer:
    """A server on this node. A thread waits until it answers, then asks after its health. `command` gets the port and
    the file with the key."""

    def __init__(
        self,
        command: Callable[[int, Path], ServerCommand],
        key: str,
        log: str,
        host: str,
        ready: str = "/models",
    ) -> None:
        self._host = host
        self._folder = Path(tempfile.mkdtemp(prefix="ascent-server-"))
        self._ready, self._failure = False, ""
        key_file, port = self._folder / "key", free_port(host)
        with open(key_file, "w", opener=partial(os.open, mode=0o600), encoding="ascii") as handle:
            handle.write(key)
        self._process = ServerProcess(
            lambda: command(port, key_file), port, key, Path(log), host, ready
        )
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="health of a server").start()

    def _watch(self) -> None:
        try:
            self._process.wait(START_SECONDS)
        except (RuntimeError, OSError) as error:
            self._failure = str(error)
            return
        finally:
            shutil.rmtree(
                self._folder, ignore_errors=True
            )  # the server has read its key; this actor may be killed
        self._ready = True
        client = Client(
            self._process.url.removesuffix("/v1"),
            token=self._process.key,
            retry=RetryPolicy(timeout=HEALTH_TIMEOUT, tries=1, trip=0),
        )
        failures = 0
        while not self._closed.wait(HEALTH_PERIOD) and failures < HEALTH_TRIES:
            try:
                client.get("/health", lambda reply: None)
                failures = 0
            except ServerFailed:
                failures += 1
        if not self._closed.is_set():
            self._failure = f"it did not answer {HEALTH_TRIES} times in a row"

    def status(self) -> Status:
        ended = self._failure or (
            f"its server ended; {self._process.log_tail()}" if self._process.ended else None
        )
        return Status(
            self._host, self._process.url if self._ready and not ended else None, ended or None
        )

    def close(self) -> None:
        self._closed.set()
        self._process.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class SamplerServer(PlacedServer):
    """An `ascent serve` on this node."""

    def __init__(
        self, wanted: WantedServers, key: str, log: str, threads: int, host: str | None = None
    ) -> None:
        host = host or node_address()

        def command(port: int, key_file: Path) -> ServerCommand:
            made = ascent_command(
                wanted.model,
                port,
                key_file,
                dtype=wanted.dtype,
                max_model_len=wanted.max_model_len,
                host=host,
            )
            return ServerCommand(made.words, {"OMP_NUM_THREADS": str(threads)})

        super().__init__(command, key, log, host)


class RewardServer(PlacedServer):
    """A reward worker on this node, in the `folder` where the run was started: rewards may name files in it."""

    def __init__(
        self,
        wanted: str,
        key: str,
        log: str,
        environment: Mapping[str, str],
        folder: str,
        host: str | None = None,
    ) -> None:
        host = host or node_address()

        def command(port: int, key_file: Path) -> ServerCommand:
            words = (
                sys.executable,
                "-m",
                "ascent.rewards.worker",
                wanted,
                "--host",
                host,
                "--port",
                str(port),
            )
            return ServerCommand((*words, "--token-file", str(key_file)), environment, folder)

        super().__init__(command, key, log, host, "/health")
