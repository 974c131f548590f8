"""POST to a server that may be busy, down or gone: one deadline for an exchange, retries, and a way to call it off."""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import ssl
import threading
import time
import urllib.parse
from dataclasses import dataclass, field

CONNECT = 10.0  # seconds: a host that drops packets should not cost a whole generation's patience


class RemoteError(RuntimeError):
    """A server that stayed down, refused, or sent what is no answer; says which URL and which request."""


class _Passing(Exception):
    """A failure that may be gone at the next try."""


@dataclass(frozen=True)
class Patience:
    """`timeout` is for one exchange, from connecting to the last byte, and is not tried again: the server may still be
    at work on the first. Lost connections and status 429 or 5xx are, `tries` times in all, after pauses that double
    from `pause` seconds and are jittered, so that many do not come back together."""

    timeout: float = 600.0
    tries: int = 5
    pause: float = 0.5

    def __post_init__(self) -> None:
        if not (self.timeout > 0 and self.tries >= 1 and self.pause >= 0):
            raise ValueError(f"{self}: timeout must be above 0, tries at least 1, pause at least 0")


@dataclass(eq=False)
class Flight:
    """Exchanges that end together: cut when nobody waits for them any more, so that the server stops generating."""

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
    """Safe to use from many threads. `key_from` names the environment variable with the server's key, if it has one;
    the key is in no message and no repr."""

    def __init__(self, key_from: str | None, patience: Patience) -> None:
        self.patience = patience
        self._key = None if key_from is None else os.environ.get(key_from, "")
        if self._key is not None and (not self._key.isascii() or self._key.split() != [self._key]):
            raise ValueError(f"key_from={key_from!r}: this environment variable must hold one word of ASCII, the key")

    def post(self, url: str, data: bytes, owner: str, flight: Flight) -> bytes:
        """The body of a reply with status 200; RemoteError, which begins with `owner`, when there will be none."""
        last = ""
        for attempt in range(self.patience.tries):
            pause = self.patience.pause * 2 ** (attempt - 1) * random.uniform(0.5, 1.0) if attempt else 0.0
            if flight.over.wait(pause):
                raise RemoteError(f"{owner}: {url}: called off")
            try:
                return self._once(url, data, flight)
            except _Passing as failure:
                last = str(failure)
            except RemoteError as failure:
                raise RemoteError(f"{owner}: {url}: {failure}") from failure
        raise RemoteError(f"{owner}: {url}: tried {self.patience.tries} times, at last {last}; is the server up?")

    def _once(self, url: str, data: bytes, flight: Flight) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            status, said = _exchange(url, data, headers, self.patience.timeout, flight)
        except TimeoutError as error:
            raise RemoteError(
                f"no reply in {self.patience.timeout:g} s; give more patience, or send less at once"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise _Passing(f"{type(error).__name__}: {error}") from error
        if status == 200:
            return said
        text = self.without_key(f"status {status}: {_message(said)}")
        raise (_Passing if status == 429 or status >= 500 else RemoteError)(text)

    def without_key(self, text: str) -> str:
        """For messages that quote the server: some repeat a key that they refuse."""
        return text if self._key is None else text.replace(self._key, "***")


def checked(url: str) -> str:
    """The URL, if it is one that can be posted to."""
    parts = urllib.parse.urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError("the url holds a user or a password; name an environment variable in key_from= instead")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"url={url!r}, but it must look like http://host:port/v1 or https://...")
    return url.rstrip("/")


def _exchange(url: str, data: bytes, headers: dict[str, str], timeout: float, flight: Flight) -> tuple[int, bytes]:
    """Status and body of one POST; TimeoutError after `timeout` seconds, however many bytes came in time."""
    parts, until = urllib.parse.urlsplit(url), time.monotonic() + timeout
    connection = _connection(parts, min(CONNECT, timeout))
    late = threading.Event()
    try:
        try:
            connection.connect()
        except TimeoutError as error:
            raise ConnectionError(f"no connection in {min(CONNECT, timeout):g} s") from error
        line = connection.sock

        def ring() -> None:
            late.set()
            _shut(line)

        # A socket's own time-out starts anew with every byte; a server that drips could hold us for ever.
        alarm = threading.Timer(max(until - time.monotonic(), 0.0), ring)
        alarm.daemon = True
        line.settimeout(timeout)
        flight.join(line)
        alarm.start()
        try:
            connection.request("POST", parts.path or "/", data, headers)
            with connection.getresponse() as response:
                status, said = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            if late.is_set():
                raise TimeoutError from error
            raise
        finally:
            alarm.cancel()
            flight.leave(line)
        if late.is_set():  # a cut connection can look like a short reply
            raise TimeoutError
        return status, said
    finally:
        connection.close()


def _connection(parts: urllib.parse.SplitResult, timeout: float) -> http.client.HTTPConnection:
    host, port = str(parts.hostname), parts.port
    if parts.scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, port, timeout=timeout)


def _shut(line: socket.socket) -> None:
    """The plain socket's shutdown, also under TLS: the thread that reads sees an end, not a vanished object."""
    try:
        socket.socket.shutdown(line, socket.SHUT_RDWR)
    except OSError:
        return  # the other side was faster


def _message(said: bytes) -> str:
    """What the server says is wrong: the message of its error object, or the beginning of whatever it sent."""
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        return said[:300].decode("utf-8", "replace")
    inner = found.get("error", found) if isinstance(found, dict) else found
    message = inner.get("message") if isinstance(inner, dict) else None
    return str(inner if message is None else message)[:1000]
