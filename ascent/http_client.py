"""The HTTP client of rewards, judges and samplers. The server may be busy, down, slow or hostile.

An exchange has one deadline, from connecting to the last byte, and at most `max_reply_bytes` are read of its reply.
Redirects are not followed and replies are never decompressed. The token is in no message and no repr.

Every failure is a `ServerFailed` whose kind is one of these words:

    server_down     nobody answers at that address, or the connection broke
    server_timeout  the exchange took longer than its deadline
    server_error    status 5xx or 429
    server_refused  any other status but 200: repeating the same request would not help
    bad_reply       something that is no answer: no HTTP, no JSON, too long, compressed, or not what was asked for
    circuit_open    not tried: the calls before this one failed, and the pause is not over
"""

from __future__ import annotations

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
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

T = TypeVar("T")
PASSING = frozenset({"server_down", "server_error"})  # failures that may be gone at the next try
CONNECT_SECONDS = 10.0  # a host that drops packets should not cost the patience of a whole exchange
LONGEST_PAUSE = 60.0
LONGEST = 7 * 86400.0  # seconds; what is longer overflows somewhere below
PIECE = 1 << 16


class ServerFailed(Exception):
    """No answer. `kind` is one of the words above; the text names the URL and quotes the server, without the token."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind, self.detail = kind, detail


@dataclass(frozen=True)
class RetryPolicy:
    """`timeout` is for one exchange. It is repeated up to `tries` times in all, after pauses that double from `pause`
    seconds and are jittered, so that many clients do not come back together. After `trip` failed calls in a row
    nothing is tried for `rest` seconds; with 0 there is no such limit."""

    timeout: float = 600.0
    tries: int = 5
    pause: float = 0.5
    trip: int = 0
    rest: float = 30.0
    max_reply_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        least = {"tries": 1, "trip": 0, "max_reply_bytes": 1}
        for name in (each.name for each in fields(self)):
            value = getattr(self, name)
            kinds = int if name in least else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise ValueError(f"retry: {name}={value!r}, but it must be a {'whole ' if name in least else ''}number")
            if name in least and value < least[name]:
                raise ValueError(f"retry: {name}={value}, but it must be at least {least[name]}")
            if name not in least and not 0 <= value <= LONGEST:
                raise ValueError(f"retry: {name}={value}, but it must lie between 0 and {LONGEST:g} seconds")
        if self.timeout == 0:
            raise ValueError("retry: timeout=0, but it must be above 0 seconds")


@dataclass(eq=False)
class RequestGroup:
    """Exchanges that end together: cut when nobody waits for them any more, so that the server stops working."""

    over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _lines: set[socket.socket] = field(default_factory=set)

    def join(self, line: socket.socket) -> None:
        with self._lock:
            self._lines.add(line)
            if self.over.is_set():
                _shut(line)

    def leave(self, line: socket.socket) -> None:
        with self._lock:
            self._lines.discard(line)

    def cut(self) -> None:
        self.over.set()
        with self._lock:
            for line in self._lines:
                _shut(line)


class Client:
    """One server, safe to call from many threads. `again` names the failures after which a request is repeated."""

    def __init__(
        self, url: str, *, token: str | None = None, retry: RetryPolicy | None = None, again: frozenset[str] = PASSING
    ) -> None:
        self.url = checked_url(url)
        self.retry = retry or RetryPolicy()
        self.counts: Counter[str] = Counter()  # exchanges by how they ended, repeated ones included
        parts = urllib.parse.urlsplit(self.url)
        self._path, self._encrypted = parts.path, parts.scheme == "https"
        self._address = (str(parts.hostname), parts.port or (443 if self._encrypted else 80))
        self._token = None if token is None else checked_token(token, "the token")
        self._again = again
        self._lock = threading.Lock()
        self._failed_in_a_row = 0
        self._closed_until = 0.0

    def post(self, path: str, body: bytes, read: Callable[[bytes], T], flight: RequestGroup | None = None) -> T:
        """What `read` makes of a reply with status 200; it raises ValueError for what is no answer."""
        self._check_circuit()
        flight = flight or RequestGroup()
        retry, where = self.retry, self.url + path
        for attempt in range(retry.tries):
            pause = min(retry.pause * 2 ** min(attempt - 1, 20), LONGEST_PAUSE) * random.uniform(0.5, 1.0)
            if flight.over.wait(pause if attempt else 0.0):
                raise ServerFailed("server_down", f"{where}: called off")
            try:
                found = self._once("POST", path, body, read, flight)
            except ServerFailed as failure:
                if flight.over.is_set():
                    raise ServerFailed("server_down", f"{where}: called off") from None
                self._count(failure.kind)
                if failure.kind not in self._again:
                    self._broke()
                    raise ServerFailed(failure.kind, f"{where}: {failure}") from None
                last = failure
            else:
                self._count("ok")
                return found
        self._broke()
        raise ServerFailed(last.kind, f"{where}: tried {retry.tries} times, at last {last}")

    def get(self, path: str, read: Callable[[bytes], T]) -> T:
        """One try, without the breaker: for a look before the first step."""
        return self._once("GET", path, None, read, RequestGroup())

    def _check_circuit(self) -> None:
        with self._lock:
            left = self._closed_until - time.monotonic()
            if left > 0:
                self.counts["circuit_open"] += 1
                raise ServerFailed(
                    "circuit_open", f"{self.url} failed {self._failed_in_a_row} times; next in {left:.1f} s"
                )
            if self._tripped():
                # Half open: this caller tries, the others keep waiting until it has succeeded.
                self._closed_until = time.monotonic() + self.retry.rest

    def _tripped(self) -> bool:
        return 0 < self.retry.trip <= self._failed_in_a_row

    def _broke(self) -> None:
        with self._lock:
            self._failed_in_a_row += 1
            if self._tripped():
                self._closed_until = time.monotonic() + self.retry.rest

    def _count(self, kind: str) -> None:
        with self._lock:
            self.counts[kind] += 1
            if kind == "ok":
                self._closed_until, self._failed_in_a_row = 0.0, 0

    def _once(self, method: str, path: str, body: bytes | None, read: Callable[[bytes], T], flight: RequestGroup) -> T:
        # Causes are left out: they quote the server, who may repeat the token.
        try:
            status, data = self._exchange(method, path, body, flight)
        except TimeoutError:
            text = f"no reply in {self.retry.timeout:g} s; raise the timeout, or send less at once"
            raise ServerFailed("server_timeout", text) from None
        except (OSError, http.client.IncompleteRead) as error:
            raise ServerFailed("server_down", self._said(f"{type(error).__name__}: {error}")) from None
        except http.client.HTTPException as error:
            raise ServerFailed("bad_reply", self._said(f"{type(error).__name__}: {error}")) from None
        except ValueError as error:
            raise ServerFailed("bad_reply", self._said(str(error))) from None
        if status != 200:
            kind = "server_error" if status >= 500 or status == 429 else "server_refused"
            raise ServerFailed(kind, f"status {status}: {self._said(_message(data))}")
        try:
            return read(data)
        except (ValueError, RecursionError, OverflowError) as error:
            # A message may quote a part of the reply, and so a part of the token.
            quotes = self._token is not None and self._token.encode() in data
            text = "a reply that is no answer and repeats the token" if quotes else self._said(str(error))
            raise ServerFailed("bad_reply", text) from None

    def _exchange(self, method: str, path: str, body: bytes | None, flight: RequestGroup) -> tuple[int, bytes]:
        """Status and body of one exchange; TimeoutError after its deadline, however many bytes came in time."""
        until = time.monotonic() + self.retry.timeout
        line, late = self._connect(), threading.Event()

        def ring() -> None:
            late.set()
            _shut(line)

        # A socket's own time-out starts anew with every byte; a server that drips could hold us for ever.
        alarm = threading.Timer(max(until - time.monotonic(), 0.0), ring)
        alarm.daemon = True
        flight.join(line)
        try:
            alarm.start()
            status, data = self._talk(line, method, path, body)
        except (OSError, ValueError, http.client.HTTPException):
            if late.is_set():
                raise TimeoutError from None
            raise
        finally:
            alarm.cancel()
            flight.leave(line)
            line.close()
        if late.is_set():  # a cut connection can look like a short reply
            raise TimeoutError
        return status, data

    def _connect(self) -> socket.socket:
        """A connection; under TLS with the handshake still to come, so that the deadline covers it."""
        seconds = min(CONNECT_SECONDS, self.retry.timeout)
        try:
            line = socket.create_connection(self._address, seconds)
        except TimeoutError:
            raise ConnectionError(f"no connection in {seconds:g} s") from None
        line.settimeout(self.retry.timeout)
        if not self._encrypted:
            return line
        try:
            context = ssl.create_default_context()
            return context.wrap_socket(line, server_hostname=self._address[0], do_handshake_on_connect=False)
        except BaseException:
            line.close()
            raise

    def _talk(self, line: socket.socket, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        if isinstance(line, ssl.SSLSocket):
            line.do_handshake()
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = http.client.HTTPConnection(*self._address)
        connection.sock = line
        connection.request(method, self._path + path or "/", body, headers)
        with connection.getresponse() as response:
            data = _body(response, self.retry.max_reply_bytes)
            return response.status, data

    def _said(self, text: str) -> str:
        """The server's words for a message: one line without the token, whole before it is cut."""
        hidden = text if self._token is None else text.replace(self._token, "***")
        return "".join(each if each.isprintable() else " " for each in hidden)[:500]


def checked_url(url: str) -> str:
    """The URL without a slash at its end, if it is one that can be asked. What may be a secret is not repeated."""
    form = "it must look like http://host:port/path or https://host/path, without a query"
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"the url is no text of ASCII letters without spaces; {form}")
    if "@" in url:
        raise ValueError(
            f"the url holds an @, so a user or a password, which would end up in files and messages; {form}, and a "
            "token comes from token_file= (rewards and judges) or key_from= (samplers)"
        )
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError:
        raise ValueError(f"the url's host or port cannot be read; {form}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or "?" in url or "#" in url:
        raise ValueError(f"url={re.split('[?#]', url)[0]!r}, but {form}")
    return url.rstrip("/")


def checked_token(token: str, owner: str) -> str:
    """The token, if a header can carry it. `owner` begins the message, which does not repeat it."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"{owner} must be one word of ASCII letters and nothing else")
    return token


def read_object(body: bytes) -> dict[str, Any]:
    """A JSON object in UTF-8; ValueError for anything else. NaN, infinities and numbers beyond floats are no JSON."""
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        beginning = body[:60].decode("utf-8", "replace")
        raise ValueError(f"no JSON: {beginning!r} ({str(error)[:100]})") from None
    if not isinstance(found, dict):
        raise ValueError(f"a {type(found).__name__}, not an object")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value


def _body(response: http.client.HTTPResponse, limit: int) -> bytes:
    """Of an error only the beginning; of an answer everything, or ValueError without having read more than `limit`."""
    answers = response.status == 200
    limit = limit if answers else PIECE
    long = ValueError(f"the reply has more than max_reply_bytes={limit} bytes")
    encoding = response.getheader("Content-Encoding", "identity")
    if answers and encoding.lower() != "identity":
        raise ValueError(f"the reply is compressed ({encoding[:20]}), which was not asked for")
    if answers and (response.length or 0) > limit:
        raise long
    # Into a buffer of our own: read() believes a chunk that claims to have -1 bytes, and reads without end.
    found, piece = bytearray(), memoryview(bytearray(PIECE))
    while len(found) <= limit and (count := response.readinto(piece)):
        found += piece[:count]
    if answers and len(found) > limit:
        raise long
    if answers and response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return bytes(memoryview(found)[:limit])


def _message(data: bytes) -> str:
    """What the server says is wrong: the message of its error object, or whatever it sent."""
    text = data.decode("utf-8", "replace")
    try:
        found = json.loads(text)
        inner = found.get("error", found) if isinstance(found, dict) else found
        message = inner.get("message") if isinstance(inner, dict) else None
        return str(inner if message is None else message)
    except (ValueError, RecursionError):
        return text


def _shut(line: socket.socket) -> None:
    """The plain socket's shutdown, also under TLS: the thread that reads sees an end, not a vanished object."""
    try:
        socket.socket.shutdown(line, socket.SHUT_RDWR)
    except OSError:
        return  # the other side was faster
