"""Servers that a run starts for itself: `ascent serve` or vLLM as a child process, which ends with the run."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ascent.engines import supervise
from ascent.http_client import Client, RetryPolicy, ServerFailed
from ascent.progress import WaitingNotes

VLLM_PYTHON = (
    "ASCENT_VLLM_PYTHON"  # the Python of an environment with vLLM, where this one has none
)
OF_RANKS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)  # a server is no rank
START_SECONDS = 1800.0  # a large model takes minutes to load
POLL_SECONDS = 0.5
NAME = "policy"  # of the model, for clients
LOOPBACK = "127.0.0.1"
TAIL_LINES = 15
VLLM_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # those that it can be started with


@dataclass(frozen=True)
class ServerCommand:
    """A command that serves on `port` of this machine, with `key`; `folder` is where it runs, if not here."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str | None = None


def ascent_command(
    model: str, port: int, key_file: Path, *, dtype: str, max_model_len: int, host: str = LOOPBACK
) -> ServerCommand:
    words = (
        sys.executable,
        "-m",
        "ascent",
        "serve",
        model,
        "--name",
        NAME,
        "--host",
        host,
        "--port",
        str(port),
    )
    options = (
        "--token-file",
        str(key_file),
        "--dtype",
        dtype,
        "--max-model-len",
        str(max_model_len),
    )
    return ServerCommand((*words, *options), {})


def vllm_command(
    model: str, port: int, key: str, *, dtype: str, max_model_len: int, lora_rank: int | None = None
) -> ServerCommand:
    """Development mode has the routes that reload weights. Log-probs are those after temperature."""
    python = find_vllm()
    words = (
        python,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        model,
        "--served-model-name",
        NAME,
    )
    options = [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--dtype",
        dtype,
        "--max-model-len",
        str(max_model_len),
    ]
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_API_KEY": key, "VLLM_NO_USAGE_STATS": "1"}
    if lora_rank is not None:
        options += ["--enable-lora", "--max-lora-rank", str(vllm_lora_rank(lora_rank))]
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    return ServerCommand((*words, *options, "--logprobs-mode", "processed_logprobs"), environment)


def vllm_lora_rank(rank: int) -> int:
    """The rank to start vLLM with, so that it takes adapters of this one; ValueError if there is none."""
    found = next((each for each in VLLM_LORA_RANKS if each >= rank), None)
    if found is None:
        raise ValueError(
            f"model.lora={rank}, but vLLM takes ranks up to {VLLM_LORA_RANKS[-1]}; set rollouts.lora_sync=merged"
        )
    return found


def find_vllm() -> str:
    """The Python that has vLLM; ValueError if there is none."""
    named = os.environ.get(VLLM_PYTHON)
    if named is not None:
        if shutil.which(named) is None:
            raise ValueError(
                f"{VLLM_PYTHON}={named} is no program; name the Python of an environment with vLLM"
            )
        return named
    if importlib.util.find_spec("vllm") is None:
        raise ValueError(
            f"the engine vllm needs vLLM; name the Python of an environment that has it ({VLLM_PYTHON}), install it "
            "here (pip install vllm), or give the URLs of servers"
        )
    return sys.executable


class ServerProcess:
    """A started server; `wait` returns once it answers at `ready`, `close` ends it. `command` is asked for whenever it
    starts."""

    def __init__(
        self,
        command: Callable[[], ServerCommand],
        port: int,
        key: str,
        log: Path,
        host: str = LOOPBACK,
        ready: str = "/models",
    ) -> None:
        self.url, self.key, self.log = (
            f"http://{f'[{host}]' if ':' in host else host}:{port}/v1",
            key,
            log,
        )
        self._command, self._ready = command, ready
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = self._command()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        inherited = {name: value for name, value in os.environ.items() if name not in OF_RANKS}
        with self.log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, supervise.__file__, str(os.getpid()), *command.words],
                cwd=command.folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**inherited, **command.environment},
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def ensure_running(self) -> None:
        """Start it again if it has ended."""
        if self.ended:
            self._process = self._start()
            self.wait()

    def wait(self, seconds: float = START_SECONDS) -> None:
        """RuntimeError with the end of its log if it ends or takes too long."""
        client = Client(self.url, token=self.key, retry=RetryPolicy(timeout=10, tries=1))
        until, notes = time.monotonic() + seconds, WaitingNotes()
        while True:
            try:
                client.get(self._ready, lambda reply: None)
                return notes.over(f"the server {self.url} answers")
            except ServerFailed:
                notes.waiting(
                    lambda since: (
                        f"waiting for the server {self.url} to start for {since}, at most {seconds:g} s; its "
                        f"log is {self.log}"
                    )
                )
                ended = self.ended
                if ended or time.monotonic() > until:
                    what = "ended" if ended else f"did not answer in {seconds:g} s"
                    raise RuntimeError(f"the server {what}; {self.log_tail()}") from None
                time.sleep(POLL_SECONDS)

    def log_tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join([f"{self.log} ends with", *lines])

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(2 * supervise.TERMINATE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def free_port(host: str = LOOPBACK) -> int:
    with socket.create_server(
        (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
    ) as sock:
        port: int = sock.getsockname()[1]
        return port


def new_key(file: Path) -> str:
    """A new key, in a file that only this user can read."""
    key = secrets.token_urlsafe(24)
    with open(
        file, "w", opener=lambda path, flags: os.open(path, flags, 0o600), encoding="ascii"
    ) as handle:
        handle.write(key)
    return key
