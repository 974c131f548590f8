"""A tiny model behind `ascent serve`, in this process."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from ascent import http_server
from ascent.engines.serve import ModelServer, error_body
from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.models.tiny import named

KEY = "a-key"


def tiny_folder(folder: Path, seed: int = 0, kind: str = "llama") -> Path:
    if not folder.exists():
        named(folder, kind, seed=seed)
    return folder


class Served:
    """`restart` ends the server and starts one with the original weights on the same port."""

    def __init__(self, folder: Path, port: int = 0, **options: Any) -> None:
        self.folder, self.options = folder, options
        self.start(port)

    def start(self, port: int = 0) -> None:
        self.model: LanguageModel = load(self.folder)
        self.server = ModelServer(self.model, "tiny", **self.options)
        self.http = http_server.create_server(
            self.server.routes(), port=port, token=KEY, error_body=error_body
        )
        self.thread = threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self.thread.start()

    @property
    def url(self) -> str:
        return f"{self.http.url}/v1"

    @property
    def port(self) -> int:
        return int(self.http.server_address[1])

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()
        self.server.close()

    def restart(self) -> None:
        port = self.port
        self.stop()
        self.start(port)

    def ask(self, path: str, body: Any = None, key: str = KEY) -> tuple[int, Any]:
        """Status and body of a reply; of a stream the text."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(
            "GET" if body is None else "POST", path, data, {"Authorization": f"Bearer {key}"}
        )
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply.status, text if reply.getheader(
            "Content-Type"
        ) == "text/event-stream" else json.loads(text)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


@contextmanager
def served(folder: Path, **options: Any) -> Iterator[Served]:
    found = Served(folder, **options)
    try:
        yield found
    finally:
        found.stop()
