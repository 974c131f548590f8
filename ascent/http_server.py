"""The HTTP server of reward models and samplers, with the standard library only.

It listens on loopback by default; on any other address it requires a token.

A connection carries one request, and has a thread of its own. Head and body each have a size limit, checked before more
is read, and a deadline, however slowly they arrive. At most MAX_CONNECTIONS are open, or half of the files that this
process may have open: when one more comes, the oldest that has not yet sent the token (without a token: not yet its
whole request) is closed.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import logging
import re
import select
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

from ascent.open_files import allowed_sockets

MAX_CONNECTIONS = 1024  # each takes a thread and a file
BACKLOG = 1024  # connections waiting to be accepted; the system may allow fewer
MAX_HEAD_BYTES = 16 << 10
HEAD_SECONDS, REQUEST_SECONDS = (
    10.0,
    60.0,
)  # from connecting to the last byte of the head, and of the body
REPLY_SECONDS, LINGER_SECONDS = 10.0, 1.0
CHUNK_BYTES = 1 << 16

_FIRST_LINE = re.compile(r"([A-Z]{1,20}) (/[!-~]*) HTTP/1\.[01]")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
_SINGLE_HEADERS = ("content-length", "authorization", "transfer-encoding", "host", "expect")


@dataclass(frozen=True)
class Call:
    """A request as its route gets it."""

    body: bytes
    is_gone: Callable[[], bool]  # whether the client has closed the connection


# A JSON object, or the data of server-sent events, one after the other.
Reply = Mapping[str, Any] | Generator[str]


@dataclass(frozen=True)
class Route:
    """What answers a path. `handle` may raise `HTTPError`, or ValueError for a bad request."""

    method: str
    handle: Callable[[Call], Reply]
    max_bytes: int = 0  # of a body, which only POST has


def create_server(
    routes: Mapping[str, Route],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    error_body: Callable[[int, str], Mapping[str, Any]] = lambda status, why: {"error": why},
) -> Server:
    """A bound server; `serve_forever` runs it."""
    if not _is_loopback(host) and token is None:
        raise ValueError(
            f"host={host} is open to other machines, so a token is needed; give --token-file FILE"
        )
    if not 0 <= port <= 65535:
        raise ValueError(f"port={port}, but a port lies between 0 and 65535; 0 takes a free one")
    try:
        host.encode("idna")  # otherwise a TypeError below
        return Server((host, port), routes, token, error_body)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise ValueError(
            f"host={host}, port={port} cannot be listened on: {reason}; choose others"
        ) from error


class HTTPError(Exception):
    """A request that is refused with this status and message."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Head(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]  # by lower-case name


class Connection:
    """One connection. Until it is `authenticated` it may be closed to make room for another."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.started = sock, time.monotonic()
        self.authenticated = self.dropped = False
        self._received = bytearray()

    def head(self) -> Head:
        end, seen = -1, 0
        while end < 0:
            self._receive(HEAD_SECONDS)
            if not self._received[
                :1
            ].isalpha():  # such as a TLS handshake, which would wait for a reply
                raise HTTPError(400, "this is no HTTP request")
            end, seen = self._received.find(b"\r\n\r\n", max(seen - 3, 0)), len(self._received)
            if (seen if end < 0 else end) > MAX_HEAD_BYTES:
                raise HTTPError(431, f"the headers have more than {MAX_HEAD_BYTES} bytes")
        found = parse_head(bytes(self._received[:end]))
        del self._received[: end + 4]
        return found

    def body(self, length: int) -> bytes:
        while len(self._received) < length:
            self._receive(REQUEST_SECONDS)
        found, self._received = bytes(memoryview(self._received)[:length]), bytearray()
        return found

    def _receive(self, seconds: float) -> None:
        remaining = self.started + seconds - time.monotonic()
        timeout = HTTPError(408, f"the request took longer than {seconds:g} s")
        if remaining <= 0:
            raise timeout
        self.sock.settimeout(remaining)
        try:
            chunk = self.sock.recv(CHUNK_BYTES)
        except TimeoutError:
            raise timeout from None
        if not chunk:
            raise ConnectionError("closed in the middle of a request")
        self._received += chunk

    def reply(self, status: int, reply: Mapping[str, Any], *, with_body: bool = True) -> None:
        data = json.dumps(reply).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        )
        head += f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        self._send(head.encode() + (data if with_body else b""))

    def stream(self, events: Generator[str]) -> None:
        """Server-sent events in chunks. Without the last, empty chunk the client knows that something is missing."""
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
        self._send(f"{head}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode())
        for event in events:
            data = f"data: {event}\n\n".encode()
            self._send(b"%x\r\n%b\r\n" % (len(data), data))
        self._send(b"0\r\n\r\n")

    def _send(self, data: bytes) -> None:
        self.sock.settimeout(REPLY_SECONDS)
        self.sock.sendall(data)

    def is_gone(self) -> bool:
        """Has the client closed the connection? What it sends after its request is ignored."""
        try:
            readable = select.select([self.sock], [], [], 0)[0]
            return bool(readable) and not self.sock.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def linger(self) -> None:
        """Wait for the client to close: closing while it still sends would discard the reply."""
        self.authenticated = False
        self.sock.shutdown(socket.SHUT_WR)
        until = time.monotonic() + LINGER_SECONDS
        while (remaining := until - time.monotonic()) > 0:
            self.sock.settimeout(remaining)
            if not self.sock.recv(CHUNK_BYTES):
                return

    def drop(self) -> None:
        self.dropped = True
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # already closed


class Server(socketserver.TCPServer):
    allow_reuse_address = True
    request_queue_size = BACKLOG

    def __init__(
        self,
        address: tuple[str, int],
        routes: Mapping[str, Route],
        token: str | None,
        error_body: Callable[[int, str], Mapping[str, Any]],
    ) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.routes, self.token, self.error_body = dict(routes), token, error_body
        self._connections: dict[Connection, None] = {}  # oldest first
        self._condition = threading.Condition()
        self._most = allowed_sockets(MAX_CONNECTIONS)
        super().__init__(address, socketserver.BaseRequestHandler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """One thread per admitted connection."""
        connection = Connection(request)
        try:
            if self._admit(connection):
                threading.Thread(
                    target=self._handle, args=(connection,), daemon=True, name="http-server"
                ).start()
                return
            connection.reply(
                503, self.error_body(503, f"{self._most} requests are being worked on; try again")
            )
        except (OSError, RuntimeError):  # the client has gone, or no thread can be started
            pass
        self._remove(connection)

    def server_close(self) -> None:
        super().server_close()
        with self._condition:
            for connection in self._connections:
                connection.drop()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logging.getLogger(__name__).exception("a connection could not be served")

    def _admit(self, connection: Connection) -> bool:
        with self._condition:
            if len(self._connections) >= self._most:
                oldest = next(
                    (
                        each
                        for each in self._connections
                        if not each.authenticated and not each.dropped
                    ),
                    None,
                )
                if oldest is None:
                    return False
                oldest.drop()
                self._condition.wait_for(lambda: len(self._connections) < self._most, timeout=1.0)
            if len(self._connections) < self._most:
                self._connections[connection] = None
            return connection in self._connections

    def _handle(self, connection: Connection) -> None:
        method = ""
        try:
            try:
                head = connection.head()
                method = head.method
                status, reply = 200, self._respond(connection, head)
            except HTTPError as refusal:
                status, reply = refusal.status, self.error_body(refusal.status, str(refusal))
            if isinstance(reply, Mapping):
                connection.reply(status, reply, with_body=method != "HEAD")
            else:
                with contextlib.closing(reply) as events:  # also when the client goes
                    connection.stream(events)
            connection.linger()
        except OSError:
            pass  # the client has gone, or was dropped
        except Exception:  # in mid-stream, too late for a status
            logging.getLogger(__name__).exception("a stream broke off")
        finally:
            self._remove(connection)

    def _remove(self, connection: Connection) -> None:
        connection.sock.close()
        with self._condition:
            self._connections.pop(connection, None)
            self._condition.notify_all()

    def _respond(self, connection: Connection, head: Head) -> Reply:
        header = head.headers.get("authorization", "").encode("latin-1")
        if self.token is not None and not hmac.compare_digest(
            header, f"Bearer {self.token}".encode()
        ):
            raise HTTPError(401, "wrong or missing token; send Authorization: Bearer TOKEN")
        connection.authenticated = self.token is not None
        path = head.path.partition("?")[0]
        route, known = (
            self.routes.get(path),
            ", ".join(f"{each.method} {path}" for path, each in self.routes.items()),
        )
        if route is None or head.method != route.method:
            status = 404 if route is None else 405
            raise HTTPError(status, f"no {head.method} {head.path[:100]}; there is {known}")
        body = b""
        if route.method == "POST":
            length = body_length(head.headers, route.max_bytes)
            if head.headers.get("expect", "").lower() == "100-continue":
                connection.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = connection.body(length)
        connection.authenticated = True
        try:
            return route.handle(Call(body, connection.is_gone))
        except ValueError as error:  # a bad body
            raise HTTPError(400, str(error)) from error
        except (HTTPError, OSError):
            raise
        except Exception as error:  # our bug: the client gets its type, the log its trace
            logging.getLogger(__name__).exception("%s failed", path)
            raise HTTPError(
                500, f"{path.rpartition('/')[2]} failed: {type(error).__name__}"
            ) from error


def parse_head(data: bytes) -> Head:
    """Parse the first line and the headers of a request."""
    first, *lines = data.decode("latin-1").split("\r\n")
    match = _FIRST_LINE.fullmatch(first)
    if match is None:
        raise HTTPError(400, "the first line is no request in HTTP/1.1")
    headers: dict[str, str] = {}
    for sock in lines:
        header = _HEADER.fullmatch(sock)
        if header is None:
            raise HTTPError(400, "a line of the headers is not NAME: VALUE")
        name = header[1].lower()
        if name in headers and name in _SINGLE_HEADERS:  # ambiguous
            raise HTTPError(400, f"the header {name} is there twice")
        headers[name] = header[2]
    return Head(match[1], match[2], headers)


def body_length(headers: Mapping[str, str], limit: int) -> int:
    if "transfer-encoding" in headers:
        raise HTTPError(
            411, "Transfer-Encoding is not read here; send Content-Length and the body as it is"
        )
    length = headers.get("content-length")
    if length is None:
        raise HTTPError(411, "there is no Content-Length; send one")
    if not re.fullmatch("[0-9]{1,18}", length):
        raise HTTPError(400, "Content-Length is not a whole number")
    if int(length) > limit:
        raise HTTPError(413, f"Content-Length is {length}, but a request has at most {limit} bytes")
    return int(length)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
