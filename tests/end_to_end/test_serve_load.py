"""`ascent serve` under load: 64 clients get what each would get alone, while others send nonsense or do not read."""

from __future__ import annotations

import itertools
import json
import random
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ascent.data.render import Renderer
from ascent.engines.native.engine import NativeEngine
from ascent.models.load import load
from ascent.records import Completion, Request
from tests.engines.served import KEY, Served, served, tiny_folder
from tests.engines.test_serve import by_key, events, requests_of

CLIENTS = 64
HEAD = f"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\nContent-Length: "
STREAM = json.dumps({"prompt": "a", "max_tokens": 900, "min_tokens": 900, "stream": True}).encode()
OFFENDERS = {
    "malformed body": f"{HEAD}9\r\n\r\nno json !".encode(),
    "malformed head": b"\x16\x03\x01 hello\r\n\r\n",
    "wrong key": HEAD.replace(KEY, "guess").encode() + b"2\r\n\r\n{}",
    "oversized": f"{HEAD}{1 << 30}\r\n\r\n".encode() + b" " * 100_000,
    "half a head": HEAD.encode()[:30],
    "half a body": f"{HEAD}500\r\n\r\n".encode() + b'{"prompt": "a"',
    "hangs up": f"{HEAD}{len(STREAM)}\r\n\r\n".encode() + STREAM,
    "does not read": f"{HEAD}{len(STREAM)}\r\n\r\n".encode() + STREAM,
}
KEEPS_OPEN = ("half a head", "half a body", "does not read")


def ask(
    server: Served, request: Request, *, stream: bool
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    body = {
        "prompt": list(request.tokens),
        "max_tokens": request.max_new_tokens,
        "seed": request.seed,
    }
    body |= {
        "prompt_id": request.prompt_id,
        "sample": request.sample,
        "logprobs": 0,
        "return_token_ids": True,
    }
    status, reply = server.ask("/v1/completions", body | {"stream": stream})
    assert status == 200, reply
    choices = events(reply) if stream else reply["choices"]
    tokens = tuple(token for each in choices for token in each["token_ids"])
    return tokens, tuple(value for each in choices for value in each["logprobs"]["token_logprobs"])


def offend(server: Served, until: float, kind: str, done: Counter[str]) -> None:
    """Again and again, one connection after the other; some are kept open, and nothing is read."""
    kept: list[socket.socket] = []
    while time.monotonic() < until:
        try:
            line = server.connect()
            line.settimeout(5)
            line.sendall(OFFENDERS[kind])
            kept.append(line)
            time.sleep(random.uniform(0.05, 0.2))
            limit = 4 if kind in KEEPS_OPEN else 0
            while len(kept) > limit:
                kept.pop(0).close()
            done[kind] += 1
        except OSError:
            continue  # dropped by the server
    for line in kept:
        line.close()


def soak(
    server: Served, wanted: list[Request], alone: dict[tuple[str, int], Completion], seconds: float
) -> str:
    """Every client asks without a pause; each answer is compared. A line of figures."""
    until, latencies, offences = time.monotonic() + seconds, [], Counter[str]()
    offenders = [
        threading.Thread(target=offend, args=(server, until, kind, offences)) for kind in OFFENDERS
    ]
    for each in offenders:
        each.start()

    def client(number: int) -> int:
        for count in itertools.count():
            if time.monotonic() >= until:
                return count
            request = wanted[(number + CLIENTS * count) % len(wanted)]
            started = time.monotonic()
            found = ask(server, request, stream=number % 4 == 0)
            latencies.append(time.monotonic() - started)
            same = alone[request.prompt_id, request.sample]
            assert found == (same.tokens, same.logprobs)
        raise AssertionError

    with ThreadPoolExecutor(CLIENTS) as threads:
        counts = list(threads.map(client, range(CLIENTS)))
    for each in offenders:
        each.join()
    assert min(counts) > 0 and set(offences) == set(OFFENDERS), offences
    latencies.sort()
    return (
        f"{CLIENTS} clients, {seconds:g} s: {sum(counts)} answers, 0 errors, at least {min(counts)} for each client; "
        f"median {latencies[len(latencies) // 2]:.2f} s, 99% {latencies[int(len(latencies) * 0.99)]:.2f} s; "
        f"{sum(offences.values())} bad connections"
    )


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.learning)])
def test_64_clients_and_those_that_misbehave(seconds: int, tmp_path: Path) -> None:
    wanted = requests_of(640)
    with served(tiny_folder(tmp_path / "m")) as server:
        model = load(server.folder)
        alone = by_key(NativeEngine(model, Renderer(model.tokenizer).stop_ids).sample(wanted))
        print(soak(server, wanted, alone, seconds))
        until = time.monotonic() + 30
        while not server.server._engine.idle and time.monotonic() < until:
            time.sleep(0.05)
        assert server.server._engine.idle and server.server._engine.stats().used_blocks == 0
