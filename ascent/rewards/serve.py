"""A reward server: scores over HTTP in the wire format (`rewards.wire`).

Requests are scored one at a time: a model gains nothing from threads, and scores then do not depend on arrival order.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence

from ascent import http_server
from ascent.http_server import Call, Route, Server
from ascent.rewards.wire import MAX_REQUEST_BYTES, read_items

Item = tuple[Sequence[Mapping[str, str]], str]
Score = Callable[[Sequence[Item]], Sequence[float | None]]


def create_server(
    score: Score, *, serves: str, host: str = "127.0.0.1", port: int = 0, token: str | None = None
) -> Server:
    """A bound server; `serve_forever` runs it."""
    lock = threading.Lock()

    def scores(call: Call) -> dict[str, list[float | None]]:
        with lock:
            found = [None if each is None else float(each) for each in score(read_items(call.body))]
        return {
            "scores": [each if each is not None and math.isfinite(each) else None for each in found]
        }

    routes = {
        "/score": Route("POST", scores, MAX_REQUEST_BYTES),
        "/health": Route("GET", lambda _: {"ok": True, "serves": serves}),
    }
    return http_server.create_server(routes, host=host, port=port, token=token)
