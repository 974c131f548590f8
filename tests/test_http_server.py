"""The server of samplers and reward models; what clients may do to it is in tests/rewards/test_serve.py."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ascent.http_client import Client, RequestGroup, RetryPolicy
from ascent.http_server import Call, Route, Server


def test_hundreds_of_requests_are_worked_on_at_a_time() -> None:
    everyone = threading.Barrier(300)

    def handle(call: Call) -> Mapping[str, Any]:
        everyone.wait(60)
        return {"found": call.body.decode()}

    server = Server(
        ("127.0.0.1", 0),
        {"/": Route("POST", handle, 100)},
        None,
        lambda status, text: {"error": text},
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client, group = (
        Client(server.url, token=None, retry=RetryPolicy(timeout=60, tries=1)),
        RequestGroup(),
    )
    try:
        with ThreadPoolExecutor(300) as threads:
            found = list(
                threads.map(lambda n: client.post("/", b"%d" % n, bytes, group), range(300))
            )
        assert found == [b'{"found": "%d"}' % n for n in range(300)]
    finally:
        server.shutdown()
        server.server_close()
