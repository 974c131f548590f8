"""A reward server: scores over HTTP in the wire format, on the standard library's own server.

It listens on this machine alone unless told otherwise, and then it insists on a token. Requests are scored one at a
time: a model gains nothing from threads, and the order of arrival then changes no score.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ascent.rewards.wire import MOST_BYTES, BadMessage, read_items

Item = tuple[Sequence[Mapping[str, str]], str]
Score = Callable[[Sequence[Item]], Sequence[float | None]]
# A client that connects and says nothing must not hold a thread for ever.
IDLE_SECONDS = 60.0


def server(score: Score, *, serves: str, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> Server:
    """A server that is bound and not yet running; `serve_forever` runs it."""
    if not _is_loopback(host) and token is None:
        raise ValueError(f"host={host} is open to other machines, so a token is needed; give --token-file FILE")
    return Server((host, port), score, serves, token)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], score: Score, serves: str, token: str | None) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.score, self.serves, self.token = score, serves, token
        self.one_at_a_time = threading.Lock()
        super().__init__(address, _Handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = IDLE_SECONDS
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path != "/health":
            self._send(404, {"error": f"no {self.path}; there is POST /score and GET /health"})
        elif self._allowed():
            self._send(200, {"ok": True, "serves": self.server.serves})

    def do_POST(self) -> None:
        if not self._allowed():
            return
        body = self._body()
        if body is None:
            return
        if self.path != "/score":
            self._send(404, {"error": f"no {self.path}; there is POST /score and GET /health"})
            return
        try:
            items = read_items(body)
        except BadMessage as error:
            self._send(400, {"error": str(error)})
            return
        try:
            with self.server.one_at_a_time:
                scores = list(self.server.score(items))
        except ValueError as error:  # a text that the model cannot take, said in our own words
            self._send(400, {"error": str(error)})
            return
        self._send(200, {"scores": scores})

    def _allowed(self) -> bool:
        given = self.headers.get("Authorization", "")
        if self.server.token is None or hmac.compare_digest(given.encode(), f"Bearer {self.server.token}".encode()):
            return True
        self.close_connection = True  # the body, unread, would be taken for the next request
        self._send(401, {"error": "wrong or missing token; send Authorization: Bearer TOKEN"})
        return False

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MOST_BYTES:
            self.close_connection = True
            self._send(413, {"error": f"Content-Length {length!r}; give one of at most {MOST_BYTES} bytes"})
            return None
        return self.rfile.read(int(length))

    def _send(self, status: int, reply: dict[str, Any]) -> None:
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: a line for every request would bury what matters."""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
