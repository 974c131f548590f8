"""HTTP calls that end: a deadline for the whole exchange, retries with growing pauses, and a circuit breaker.

Every failure has a name that rewards pass on as the reason why a rollout is unscored:

    server_down     nobody answers at that address, or the connection broke
    server_timeout  the exchange took longer than its deadline
    server_error    status 5xx or 429, after all retries
    server_refused  any other status but 200: repeating the same request would not help
    bad_reply       status 200 with something that is no answer
    circuit_open    not tried: the calls before this one failed, and the pause is not over
"""

from __future__ import annotations

import http.client
import random
import socket
import ssl
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ascent.rewards.outcome import Unscored
from ascent.rewards.wire import MOST_BYTES, BadMessage

T = TypeVar("T")
_AGAIN = frozenset({"server_down", "server_timeout", "server_error", "bad_reply"})


@dataclass(frozen=True)
class Patience:
    """`timeout` is for one exchange from connecting to the last byte. Pauses double from `pause` and are jittered, so
    that many clients do not come back together. After `trip` failed calls in a row nothing is tried for `rest` s."""

    timeout: float = 30.0
    tries: int = 3
    pause: float = 0.5
    trip: int = 5
    rest: float = 30.0

    def __post_init__(self) -> None:
        if not (self.timeout > 0 and self.tries >= 1 and self.pause >= 0 and self.trip >= 1 and self.rest >= 0):
            raise ValueError(f"{self}: timeout must be above 0, tries and trip at least 1, pause and rest at least 0")


class Client:
    """One server. Safe to call from many threads."""

    def __init__(self, url: str, *, token: str | None = None, patience: Patience | None = None) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url={url!r}, but it must look like http://host:port/path or https://...")
        self.url, self._parts = url, parts
        self._token = token
        self._patience = patience or Patience()
        self._lock = threading.Lock()
        self._failed_in_a_row = 0
        self._closed_until = 0.0
        self.counts: Counter[str] = Counter()  # exchanges by how they ended, retries included

    def post(self, path: str, body: bytes, read: Callable[[bytes], T]) -> T:
        """What `read` makes of the reply's body; Unscored with one of the names above when there is none."""
        self._check_circuit()
        for attempt in range(self._patience.tries):
            if attempt:
                time.sleep(self._patience.pause * 2 ** (attempt - 1) * random.uniform(0.5, 1.0))
            try:
                found = self._once("POST", path, body, read)
            except Unscored as failure:
                self._count(failure.kind)
                if failure.kind not in _AGAIN or attempt == self._patience.tries - 1:
                    self._broke()
                    raise
            else:
                self._count("ok")
                with self._lock:
                    self._failed_in_a_row = 0
                return found
        raise AssertionError("tries is at least 1")

    def get(self, path: str) -> bytes:
        """One try, without the breaker: for a look before the first step."""
        return self._once("GET", path, None, bytes)

    def _check_circuit(self) -> None:
        with self._lock:
            left = self._closed_until - time.monotonic()
            if left > 0:
                self.counts["circuit_open"] += 1
                raise Unscored("circuit_open", f"{self.url} failed {self._failed_in_a_row} times; next in {left:.1f} s")
            if self._failed_in_a_row >= self._patience.trip:
                # Half open: this caller tries, the others keep waiting until it has succeeded.
                self._closed_until = time.monotonic() + self._patience.rest

    def _broke(self) -> None:
        with self._lock:
            self._failed_in_a_row += 1
            if self._failed_in_a_row >= self._patience.trip:
                self._closed_until = time.monotonic() + self._patience.rest

    def _count(self, kind: str) -> None:
        with self._lock:
            self.counts[kind] += 1
            if kind == "ok":
                self._closed_until = 0.0

    def _once(self, method: str, path: str, body: bytes | None, read: Callable[[bytes], T]) -> T:
        headers: dict[str, str] = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = self._connection()
        late = threading.Event()
        alarm: threading.Timer | None = None
        until = time.monotonic() + self._patience.timeout
        try:
            connection.connect()
            # A socket's own time-out starts anew with every byte; a server that drips could hold us for ever. The
            # socket is handed over now, because the connection lets go of it before the body is read.
            alarm = threading.Timer(max(until - time.monotonic(), 0.0), _cut, (connection.sock, late))
            alarm.daemon = True
            alarm.start()
            connection.request(method, self._parts.path.rstrip("/") + path, body, headers)
            with connection.getresponse() as response:
                data = response.read(MOST_BYTES + 1)
            if late.is_set():  # a cut connection can look like a short reply
                raise TimeoutError
            _check_status(self.url, response.status, data)
            return read(data)
        except (OSError, http.client.HTTPException) as error:
            if late.is_set() or isinstance(error, TimeoutError):
                raise Unscored("server_timeout", f"{self.url}: no reply in {self._patience.timeout:g} s") from error
            if isinstance(error, http.client.HTTPException) and not isinstance(error, ConnectionError):
                raise Unscored("bad_reply", f"{self.url}: {type(error).__name__}: {error}") from error
            raise Unscored("server_down", f"{self.url}: {type(error).__name__}: {error}") from error
        except BadMessage as error:
            raise Unscored("bad_reply", f"{self.url}: {error}") from error
        finally:
            if alarm is not None:
                alarm.cancel()
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host, port = str(self._parts.hostname), self._parts.port
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._patience.timeout, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._patience.timeout)


def _cut(connected: socket.socket, late: threading.Event) -> None:
    late.set()
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the other side was faster


def _check_status(url: str, status: int, data: bytes) -> None:
    if status == 200:
        if len(data) > MOST_BYTES:
            raise BadMessage(f"more than {MOST_BYTES} bytes")
        return
    said = data[:200].decode("utf-8", "replace")
    kind = "server_error" if status >= 500 or status == 429 else "server_refused"
    raise Unscored(kind, f"{url}: status {status}: {said}")


def patience_from(options: Mapping[str, float]) -> Patience:
    """Patience from a recipe's options."""
    try:
        return Patience(**options)  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(f"patience={dict(options)}: {error}") from error
