"""A reward server: scores over HTTP in the wire format, with the standard library alone.

It listens on this machine alone unless told otherwise, and then it insists on a token. Requests are scored one at a
time: a model gains nothing from threads, and the order of arrival then changes no score.

A connection carries one request. Its head and its body each have a limit on their size, checked before more is read,
and a deadline, however slowly they drip. At most MAX_CONNECTIONS are open: when one more comes, the oldest that has
not yet shown the token (without a token: not yet sent its whole request) is closed to make room.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import math
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from ascent.rewards.wire import MOST_BYTES, read_items

Item = tuple[Sequence[Mapping[str, str]], str]
Score = Callable[[Sequence[Item]], Sequence[float | None]]

MAX_CONNECTIONS = 128  # each is a thread and a file; many systems allow a process 256 files
BACKLOG = 1024  # connections that wait to be accepted; the system may allow fewer
MAX_HEAD_BYTES = 16 << 10
HEAD_SECONDS, REQUEST_SECONDS = 10.0, 60.0  # from connecting to the last byte of the head, and of the body
REPLY_SECONDS, LINGER_SECONDS = 10.0, 1.0
PIECE = 1 << 16

_FIRST_LINE = re.compile(r"([A-Z]{1,20}) (/[!-~]*) HTTP/1\.[01]")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
_ONCE = ("content-length", "authorization", "transfer-encoding", "host", "expect")


def server(score: Score, *, serves: str, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> Server:
    """A server that is bound and not yet running; `serve_forever` runs it."""
    if not _is_loopback(host) and token is None:
        raise ValueError(f"host={host} is open to other machines, so a token is needed; give --token-file FILE")
    if not 0 <= port <= 65535:
        raise ValueError(f"port={port}, but a port lies between 0 and 65535; 0 takes a free one")
    try:
        host.encode("idna")  # a name that cannot be written so would be a TypeError below
        return Server((host, port), score, serves, token)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name of a machine"
        raise ValueError(f"host={host}, port={port} cannot be listened on: {reason}; choose others") from error


class Refused(Exception):
    """A request that is answered with this status and this sentence."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Head(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]  # by their names in small letters


class Visit:
    """One connection. Until it is `trusted` it may be closed to make room for another."""

    def __init__(self, line: socket.socket) -> None:
        self.line, self.began = line, time.monotonic()
        self.trusted = self.dropped = False
        self._received = bytearray()

    def head(self) -> Head:
        end, seen = -1, 0
        while end < 0:
            self._receive(HEAD_SECONDS)
            if not self._received[:1].isalpha():  # such as a TLS handshake, which would wait for its answer
                raise Refused(400, "this is no HTTP request")
            end, seen = self._received.find(b"\r\n\r\n", max(seen - 3, 0)), len(self._received)
            if (seen if end < 0 else end) > MAX_HEAD_BYTES:
                raise Refused(431, f"the headers have more than {MAX_HEAD_BYTES} bytes")
        found = parse_head(bytes(self._received[:end]))
        del self._received[: end + 4]
        return found

    def body(self, length: int) -> bytes:
        while len(self._received) < length:
            self._receive(REQUEST_SECONDS)
        found, self._received = bytes(memoryview(self._received)[:length]), bytearray()
        return found

    def _receive(self, seconds: float) -> None:
        left = self.began + seconds - time.monotonic()
        late = Refused(408, f"the request took longer than {seconds:g} s")
        if left <= 0:
            raise late
        self.line.settimeout(left)
        try:
            piece = self.line.recv(PIECE)
        except TimeoutError:
            raise late from None
        if not piece:
            raise ConnectionError("closed in the middle of a request")
        self._received += piece

    def reply(self, status: int, reply: Mapping[str, Any], *, with_body: bool = True) -> None:
        data = json.dumps(reply).encode()
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        self.line.settimeout(REPLY_SECONDS)
        self.line.sendall(head.encode() + (data if with_body else b""))

    def linger(self) -> None:
        """Wait for the client to close: closing on what it still sends would take the reply away from it."""
        self.trusted = False
        self.line.shutdown(socket.SHUT_WR)
        until = time.monotonic() + LINGER_SECONDS
        while (left := until - time.monotonic()) > 0:
            self.line.settimeout(left)
            if not self.line.recv(PIECE):
                return

    def drop(self) -> None:
        self.dropped = True
        try:
            self.line.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the client was faster


class Server(socketserver.TCPServer):
    allow_reuse_address = True
    request_queue_size = BACKLOG

    def __init__(self, address: tuple[str, int], score: Score, serves: str, token: str | None) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.score, self.serves, self.token = score, serves, token
        self.one_at_a_time = threading.Lock()
        self._visits: dict[Visit, None] = {}  # the oldest first
        self._changed = threading.Condition()
        super().__init__(address, socketserver.BaseRequestHandler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """One thread for each connection that is let in."""
        visit = Visit(request)
        try:
            if self._let_in(visit):
                threading.Thread(target=self._attend, args=(visit,), daemon=True, name="serve-reward").start()
                return
            visit.reply(503, {"error": f"{MAX_CONNECTIONS} requests are being worked on; try again"})
        except (OSError, RuntimeError):  # the client has gone; or there are no more threads
            pass
        self._leave(visit)

    def server_close(self) -> None:
        super().server_close()
        with self._changed:
            for visit in self._visits:
                visit.drop()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logging.getLogger(__name__).exception("a connection could not be served")

    def _let_in(self, visit: Visit) -> bool:
        with self._changed:
            if len(self._visits) >= MAX_CONNECTIONS:
                oldest = next((each for each in self._visits if not each.trusted and not each.dropped), None)
                if oldest is None:
                    return False
                oldest.drop()
                self._changed.wait_for(lambda: len(self._visits) < MAX_CONNECTIONS, timeout=1.0)
            if len(self._visits) < MAX_CONNECTIONS:
                self._visits[visit] = None
            return visit in self._visits

    def _attend(self, visit: Visit) -> None:
        method = ""
        try:
            try:
                head = visit.head()
                method = head.method
                status, reply = 200, self._answer(visit, head)
            except Refused as refusal:
                status, reply = refusal.status, {"error": str(refusal)}
            visit.reply(status, reply, with_body=method != "HEAD")
            visit.linger()
        except OSError:
            pass  # the client has gone, or was made to
        finally:
            self._leave(visit)

    def _leave(self, visit: Visit) -> None:
        visit.line.close()
        with self._changed:
            self._visits.pop(visit, None)
            self._changed.notify_all()

    def _answer(self, visit: Visit, head: Head) -> dict[str, Any]:
        given = head.headers.get("authorization", "").encode("latin-1")
        if self.token is not None and not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
            raise Refused(401, "wrong or missing token; send Authorization: Bearer TOKEN")
        visit.trusted = self.token is not None
        method = {"/health": "GET", "/score": "POST"}.get(head.path)
        if method is None:
            raise Refused(404, f"no {head.path[:100]}; there is POST /score and GET /health")
        if head.method != method:
            raise Refused(405, f"no {head.method} {head.path}; there is POST /score and GET /health")
        if head.path == "/health":
            return {"ok": True, "serves": self.serves}
        length = body_length(head.headers)
        if head.headers.get("expect", "").lower() == "100-continue":
            visit.line.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = visit.body(length)
        visit.trusted = True
        return {"scores": self._scores(body)}

    def _scores(self, body: bytes) -> list[float | None]:
        try:
            with self.one_at_a_time:
                scores = [None if score is None else float(score) for score in self.score(read_items(body))]
        except ValueError as error:  # a body or a text that cannot be taken, said in our own words
            raise Refused(400, str(error)) from error
        except Exception as error:  # our own mistake: the client hears of it, and its trace stays here
            logging.getLogger(__name__).exception("scoring failed")
            raise Refused(500, f"scoring failed: {type(error).__name__}") from error
        return [score if score is not None and math.isfinite(score) else None for score in scores]


def parse_head(data: bytes) -> Head:
    """The first line and the headers of a request, without the empty line that ends them."""
    first, *lines = data.decode("latin-1").split("\r\n")
    matched = _FIRST_LINE.fullmatch(first)
    if matched is None:
        raise Refused(400, "the first line is no request in HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise Refused(400, "a line of the headers is not NAME: VALUE")
        name = header[1].lower()
        if name in headers and name in _ONCE:  # two readers could believe different ones
            raise Refused(400, f"the header {name} is there twice")
        headers[name] = header[2]
    return Head(matched[1], matched[2], headers)


def body_length(headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise Refused(411, "Transfer-Encoding is not read here; send Content-Length and the body as it is")
    length = headers.get("content-length")
    if length is None:
        raise Refused(411, "there is no Content-Length; send one")
    if not re.fullmatch("[0-9]{1,18}", length):
        raise Refused(400, "Content-Length is not a whole number")
    if int(length) > MOST_BYTES:
        raise Refused(413, f"Content-Length is {length}, but a request has at most {MOST_BYTES} bytes")
    return int(length)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
