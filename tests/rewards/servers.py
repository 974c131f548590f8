"""Real HTTP servers that misbehave on demand."""

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[str, dict[str, Any]], tuple[int, bytes]]


class Misbehaving(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[tuple[str, dict[str, Any], str]] = []
        self.drip = False
        self.cut = False
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Misbehaving

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, body, self.headers.get("Authorization", "")))
        status, data = self.server.answer(self.path, body)
        if self.server.cut:
            self.connection.close()
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        try:
            for place in range(len(data)):
                self.wfile.write(data[place : place + 1]) if self.server.drip else None
                time.sleep(0.1) if self.server.drip else None
            if not self.server.drip:
                self.wfile.write(data)
        except OSError:
            return  # the client gave up, as it should

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, ValueError):
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Raw:
    """Sends the same bytes to whoever has sent a request, whatever HTTP thinks of them."""

    def __init__(self, reply: Callable[[], Iterable[bytes]]) -> None:
        self.reply, self.sent, self.asked = reply, 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def serve(self) -> None:
        while True:
            try:
                line, _ = self.listener.accept()
            except OSError:
                return  # the test is over
            with line:
                try:
                    self._answer(line)
                except OSError:
                    continue  # the client gave up, as it should

    def _answer(self, line: socket.socket) -> None:
        line.settimeout(10)
        got = b""
        while b"\r\n\r\n" not in got:
            got += line.recv(1 << 16)
        head, _, body = got.partition(b"\r\n\r\n")
        length = int(re.findall(rb"Content-Length: (\d+)", head)[0])
        while len(body) < length:
            body += line.recv(1 << 16)
        self.asked += 1
        for piece in self.reply():
            line.sendall(piece)
            self.sent += len(piece)


@contextmanager
def raw(reply: Callable[[], Iterable[bytes]] | bytes) -> Iterator[Raw]:
    server = Raw((lambda: [reply]) if isinstance(reply, bytes) else reply)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.listener.shutdown(socket.SHUT_RDWR)
        server.listener.close()
        thread.join()


def ok(body: bytes, *headers: str) -> bytes:
    """A reply with status 200 whose body ends with the connection."""
    return (
        "".join(f"{line}\r\n" for line in ("HTTP/1.1 200 OK", *headers, "")).encode("latin-1")
        + body
    )


def dripping(
    *pieces: bytes, every: float = 0.05, times: int = 200
) -> Callable[[], Iterator[bytes]]:
    """The first piece at once, then the last one again and again."""

    def reply() -> Iterator[bytes]:
        yield pieces[0]
        for _ in range(times):
            time.sleep(every)
            yield pieces[-1]

    return reply


# What is no HTTP, or not enough of it: the reply to a request, and the word for it.
NO_HTTP: dict[str, tuple[Callable[[], Iterable[bytes]] | bytes, str]] = {
    "nothing": (b"", "server_down"),
    "garbage": (b"garbage\r\n\r\n", "bad_reply"),
    "zeros": (b"\0" * 1000, "bad_reply"),
    "an odd status": ("HTTP/1.1 \xb200 OK\r\n\r\n".encode("latin-1"), "bad_reply"),
    "another protocol": (b"HTTP/9.9 200 OK\r\n\r\n{}", "bad_reply"),
    "a long first line": (b"HTTP/1.1 200 " + b"x" * 70_000 + b"\r\n\r\n", "bad_reply"),
    "many headers": (ok(b"{}", *(f"X-{n}: y" for n in range(200))), "bad_reply"),
    "a short body": (ok(b'{"scores": [1.0]}', "Content-Length: 99"), "server_down"),
    "a long body": (ok(b"{}", "Content-Length: 99999999999"), "bad_reply"),
    "a chunk of no length": (
        ok(b"zz\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
        "server_down",
    ),
    "chunks without an end": (ok(b"2\r\n{}\r\n", "Transfer-Encoding: chunked"), "server_down"),
    "compressed": (ok(b"\x1f\x8b\x08" + b"\0" * 20, "Content-Encoding: gzip"), "bad_reply"),
    "an empty body": (ok(b"", "Content-Length: 0"), "bad_reply"),
    "no UTF-8": (ok(b'{"scores": ["\xff"]}'), "bad_reply"),
    "UTF-16": (ok('{"scores": [1.0]}'.encode("utf-16")), "bad_reply"),
    "deep": (ok(b"[" * 100_000), "bad_reply"),
    "5,000 digits": (ok(b'{"scores": [' + b"1" * 5000 + b"]}"), "bad_reply"),
    "dripping headers": (dripping(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), "server_timeout"),
    "dripping body": (dripping(ok(b"", "Content-Length: 9999"), b" "), "server_timeout"),
    "continue for ever": (dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "server_timeout"),
    "500 that drips": (
        dripping(b"HTTP/1.1 500 Oops\r\nContent-Length: 999\r\n\r\n", b"x"),
        "server_timeout",
    ),
}

LAZY_BYTES = 300_000_000


def endless(head: bytes) -> Callable[[], Iterator[bytes]]:
    """300 MB, made while they are sent."""

    def reply() -> Iterator[bytes]:
        yield head
        for _ in range(0, LAZY_BYTES, 1 << 20):
            yield b" " * (1 << 20)

    return reply


ENDLESS = {
    "until the end": endless(ok(b"")),
    "of a known length": endless(ok(b"", "Content-Length: 4000000000")),
    "in one chunk": endless(ok(b"FFFFFFFF\r\n", "Transfer-Encoding: chunked")),
    "in a chunk of -1 bytes": endless(ok(b"-1\r\n", "Transfer-Encoding: chunked")),
}


@contextmanager
def misbehaving(answer: Answer) -> Iterator[Misbehaving]:
    server = Misbehaving(answer)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def scores(*values: Any) -> bytes:
    return json.dumps({"scores": list(values)}).encode()
