"""The HTTP client of rewards, judges and samplers. The server may be busy, down, slow or hostile.

An exchange has one deadline, from connecting to the last byte, and at most `max_reply_bytes` of the reply are read.
Redirects are not followed and replies are never decompressed. The token is in no message and no repr.

Every failure is a `ServerFailed` with one of these kinds:

    server_down     connection refused or broken
    server_timeout  the exchange took longer than its deadline
    server_error    status 5xx or 429
    server_refused  any other status but 200: retrying would not help
    bad_reply       malformed: no HTTP, no JSON, too long, compressed, or not the requested data
    circuit_open    not tried: the last calls failed, and the pause is not over
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import random
import re
import socket
import ssl
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
TRANSIENT = frozenset({"server_down", "server_error"})  # failures after which a retry may succeed
CONNECT_SECONDS = 10.0  # a host that drops packets should not take the whole timeout
MAX_PAUSE = 60.0
MAX_SECONDS = 7 * 86400.0  # longer timeouts overflow in the standard library
CHUNK_BYTES = 1 << 16


class ServerFailed(Exception):
    """A failed request. `kind` is one of the above; the text has the URL and the server's message, not the token."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind, self.detail = kind, detail


@dataclass(frozen=True)
class RetryPolicy:
    """`timeout` is for one exchange. It is tried up to `tries` times, with jittered pauses that double from `pause`
    seconds. After `trip` consecutive failed calls the circuit opens for `rest` seconds; 0 disables that."""

    timeout: float = 600.0
    tries: int = 5
    pause: float = 0.5
    trip: int = 0
    rest: float = 30.0
    max_reply_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        minimums = {"tries": 1, "trip": 0, "max_reply_bytes": 1}
        for name, value in vars(self).items():
            types = int if name in minimums else (int, float)
            if isinstance(value, bool) or not isinstance(value, types):
                raise ValueError(
                    f"retry: {name}={value!r}, but it must be a {'whole ' if name in minimums else ''}number"
                )
            if name in minimums and value < minimums[name]:
                raise ValueError(f"retry: {name}={value}, but it must be at least {minimums[name]}")
            if name not in minimums and not 0 <= value <= MAX_SECONDS:
                raise ValueError(
                    f"retry: {name}={value}, but it must lie between 0 and {MAX_SECONDS:g} seconds"
                )
        if self.timeout == 0:
            raise ValueError("retry: timeout=0, but it must be above 0 seconds")


@dataclass(eq=False)
class RequestGroup:
    """Exchanges that can be cancelled together, so that the server stops working on them. They belong to `parents`,
    too: cancelling one of these ends them."""

    cancelled: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sockets: set[socket.socket] = field(default_factory=set)
    parents: tuple[RequestGroup, ...] = ()

    def join(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.add(sock)
            if self.cancelled.is_set():
                _shutdown(sock)
        for each in self.parents:
            each.join(sock)

    def leave(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(sock)
        for each in self.parents:
            each.leave(sock)

    def cancel(self) -> None:
        self.cancelled.set()
        with self._lock:
            for sock in self._sockets:
                _shutdown(sock)


class Client:
    """A thread-safe client of one server. `retry_on` are the kinds of failure after which a request is retried."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        retry: RetryPolicy | None = None,
        retry_on: frozenset[str] = TRANSIENT,
    ) -> None:
        self.url = validate_url(url)
        self.retry = retry or RetryPolicy()
        self.counts: Counter[str] = Counter()  # exchanges by result, retries included
        parts = urllib.parse.urlsplit(self.url)
        self._path, self._encrypted = parts.path, parts.scheme == "https"
        self._address = (str(parts.hostname), parts.port or (443 if self._encrypted else 80))
        self._token = None if token is None else validate_token(token, "the token")
        self._retry_on, self._lock = retry_on, threading.Lock()
        self._consecutive_failures, self._open_until = 0, 0.0

    def post(
        self, path: str, body: bytes, read: Callable[[bytes], T], group: RequestGroup | None = None
    ) -> T:
        """`read` parses a reply with status 200 and raises ValueError if it is malformed."""
        self._check_circuit()
        group = group or RequestGroup()
        retry, full_url = self.retry, self.url + path
        for attempt in range(retry.tries):
            pause = min(retry.pause * 2 ** min(attempt - 1, 20), MAX_PAUSE) * random.uniform(
                0.5, 1.0
            )
            if group.cancelled.wait(pause if attempt else 0.0):
                raise ServerFailed("server_down", f"{full_url}: cancelled")
            try:
                result = self._once("POST", path, body, read, group)
            except ServerFailed as failure:
                if group.cancelled.is_set():
                    raise ServerFailed("server_down", f"{full_url}: cancelled") from None
                self._count(failure.kind)
                last = failure
                if failure.kind not in self._retry_on:
                    break
            else:
                self._count("ok")
                return result
        self._record_failure()
        tried = f"tried {retry.tries} times, at last " if last.kind in self._retry_on else ""
        raise ServerFailed(last.kind, f"{full_url}: {tried}{last}")

    def get(self, path: str, read: Callable[[bytes], T]) -> T:
        """One try, without retries or the circuit breaker."""
        return self._once("GET", path, None, read, RequestGroup())

    def _check_circuit(self) -> None:
        with self._lock:
            remaining = self._open_until - time.monotonic()
            if remaining > 0:
                self.counts["circuit_open"] += 1
                failed = f"{self.url} failed {self._consecutive_failures} times"
                raise ServerFailed("circuit_open", f"{failed}; next in {remaining:.1f} s")
            if self._tripped():
                # Half open: this caller tries; the others wait until it succeeds.
                self._open_until = time.monotonic() + self.retry.rest

    def _tripped(self) -> bool:
        return 0 < self.retry.trip <= self._consecutive_failures

    def _record_failure(self) -> None:
        with self._lock:
            self._consecutive_failures += 1
            if self._tripped():
                self._open_until = time.monotonic() + self.retry.rest

    def _count(self, kind: str) -> None:
        with self._lock:
            self.counts[kind] += 1
            if kind == "ok":
                self._open_until, self._consecutive_failures = 0.0, 0

    def _once(
        self,
        method: str,
        path: str,
        body: bytes | None,
        read: Callable[[bytes], T],
        group: RequestGroup,
    ) -> T:
        # `from None`: causes quote the server, which may repeat the token.
        try:
            status, data = self._exchange(method, path, body, group)
        except TimeoutError:
            text = f"no reply in {self.retry.timeout:g} s; raise the timeout, or send less at once"
            raise ServerFailed("server_timeout", text) from None
        except (OSError, http.client.IncompleteRead) as error:
            raise ServerFailed(
                "server_down", self._sanitize(f"{type(error).__name__}: {error}")
            ) from None
        except http.client.HTTPException as error:
            raise ServerFailed(
                "bad_reply", self._sanitize(f"{type(error).__name__}: {error}")
            ) from None
        except ValueError as error:
            raise ServerFailed("bad_reply", self._sanitize(str(error))) from None
        if status != 200:
            kind = "server_error" if status >= 500 or status == 429 else "server_refused"
            raise ServerFailed(kind, f"status {status}: {self._sanitize(_error_message(data))}")
        try:
            return read(data)
        except (ValueError, RecursionError, OverflowError) as error:
            # A message may quote part of the reply, and so part of the token.
            quotes = self._token is not None and self._token.encode() in data
            text = (
                "a malformed reply that repeats the token" if quotes else self._sanitize(str(error))
            )
            raise ServerFailed("bad_reply", text) from None

    def _exchange(
        self, method: str, path: str, body: bytes | None, group: RequestGroup
    ) -> tuple[int, bytes]:
        """Status and body of one exchange; TimeoutError after its deadline."""
        deadline = time.monotonic() + self.retry.timeout
        sock, timed_out = self._connect(), threading.Event()

        def on_deadline() -> None:
            timed_out.set()
            _shutdown(sock)

        # A socket's own timeout restarts with every byte, so a slow server could hold us forever.
        alarm = threading.Timer(max(deadline - time.monotonic(), 0.0), on_deadline)
        alarm.daemon = True
        group.join(sock)
        try:
            alarm.start()
            status, data = self._send_request(sock, method, path, body)
        except (OSError, ValueError, http.client.HTTPException):
            if timed_out.is_set():
                raise TimeoutError from None
            raise
        finally:
            alarm.cancel()
            group.leave(sock)
            sock.close()
        if timed_out.is_set():  # a closed connection can look like a short reply
            raise TimeoutError
        return status, data

    def _connect(self) -> socket.socket:
        """A connection; the TLS handshake comes later, so that the deadline covers it."""
        seconds = min(CONNECT_SECONDS, self.retry.timeout)
        try:
            sock = socket.create_connection(self._address, seconds)
        except TimeoutError:
            raise ConnectionError(f"no connection in {seconds:g} s") from None
        sock.settimeout(self.retry.timeout)
        if not self._encrypted:
            return sock
        try:
            context = ssl.create_default_context()
            return context.wrap_socket(
                sock, server_hostname=self._address[0], do_handshake_on_connect=False
            )
        except BaseException:
            sock.close()
            raise

    def _send_request(
        self, sock: socket.socket, method: str, path: str, body: bytes | None
    ) -> tuple[int, bytes]:
        if isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = http.client.HTTPConnection(*self._address)
        connection.sock = sock
        connection.request(method, self._path + path or "/", body, headers)
        with connection.getresponse() as response:
            data = _read_body(response, self.retry.max_reply_bytes)
            return response.status, data

    def _sanitize(self, text: str) -> str:
        """The server's text for a message: one line, without the token."""
        redacted = text if self._token is None else text.replace(self._token, "***")
        return "".join(each if each.isprintable() else " " for each in redacted)[:500]


def validate_url(url: str) -> str:
    """The URL without a trailing slash; ValueError if it is invalid, without quoting what may be a secret."""
    expected_form = "it must look like http://host:port/path or https://host/path, without a query"
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"the url is no text of ASCII letters without spaces; {expected_form}")
    if "@" in url:
        raise ValueError(
            "the url holds an @, so a user or a password, which would end up in files and messages; "
            f"{expected_form}, and a token comes from token_file= (rewards and judges) or key_from= (samplers)"
        )
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError:
        raise ValueError(f"the url's host or port cannot be read; {expected_form}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or "?" in url or "#" in url:
        raise ValueError(f"url={re.split('[?#]', url)[0]!r}, but {expected_form}")
    return url.rstrip("/")


def validate_token(token: str, owner: str) -> str:
    """The token, if a header can carry it. The message begins with `owner` and does not quote the token."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"{owner} must be one word of ASCII letters and nothing else")
    return token


def parse_json_object(body: bytes) -> dict[str, Any]:
    """A JSON object in UTF-8; ValueError for anything else, including NaN, infinities and numbers beyond floats."""
    try:
        result = json.loads(
            body.decode("utf-8"), parse_constant=_parse_finite, parse_float=_parse_finite
        )
    except (ValueError, RecursionError) as error:
        beginning = body[:60].decode("utf-8", "replace")
        raise ValueError(f"no JSON: {beginning!r} ({str(error)[:100]})") from None
    if not isinstance(result, dict):
        raise ValueError(f"a {type(result).__name__}, not an object")
    return result


def _parse_finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value


def _read_body(response: http.client.HTTPResponse, limit: int) -> bytes:
    """The whole body, or ValueError beyond `limit` bytes; of an error only the beginning."""
    ok = response.status == 200
    limit = limit if ok else CHUNK_BYTES
    too_long = ValueError(f"the reply has more than max_reply_bytes={limit} bytes")
    encoding = response.getheader("Content-Encoding", "identity")
    if ok and encoding.lower() != "identity":
        raise ValueError(f"the reply is compressed ({encoding[:20]}), which was not requested")
    if ok and (response.length or 0) > limit:
        raise too_long
    # Into our own buffer: read() reads without end on a chunk of -1 bytes.
    result, chunk = bytearray(), memoryview(bytearray(CHUNK_BYTES))
    while len(result) <= limit and (count := response.readinto(chunk)):
        result += chunk[:count]
    if ok and len(result) > limit:
        raise too_long
    if ok and response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return bytes(memoryview(result)[:limit])


def _error_message(data: bytes) -> str:
    """The message of the server's error object, or its text."""
    text = data.decode("utf-8", "replace")
    try:
        result = json.loads(text)
        inner = result.get("error", result) if isinstance(result, dict) else result
        message = inner.get("message") if isinstance(inner, dict) else None
        return str(inner if message is None else message)
    except (ValueError, RecursionError):
        return text


def _shutdown(sock: socket.socket) -> None:
    """The plain socket's shutdown, also under TLS, so that the reading thread sees an end of file."""
    with contextlib.suppress(OSError):  # already closed
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
