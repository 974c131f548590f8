"""Real HTTP servers that misbehave on demand."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[str, dict[str, Any]], tuple[int, bytes]]


class Misbehaving(ThreadingHTTPServer):
    daemon_threads = True

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


@contextmanager
def misbehaving(answer: Answer) -> Iterator[Misbehaving]:
    server = Misbehaving(answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def scores(*values: Any) -> bytes:
    return json.dumps({"scores": list(values)}).encode()
