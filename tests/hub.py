"""A stand-in for the hub: the requests of a login, of a new repository and of a commit, over HTTP."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hub:
    """What was uploaded: `repositories` with the body of their creation, `files` by repository and path."""

    address: str = ""
    token: str = "hf_good"
    refuse_commits: bool = False
    repositories: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        if path == "/api/whoami-v2":
            return 200, {"name": "me", "type": "user"}
        if path == "/api/repos/create":
            made = json.loads(body)
            name = f"{made.get('organization') or 'me'}/{made['name']}"
            self.repositories[name] = made
            return 200, {"url": f"{self.address}/{name}", "name": name, "id": "1"}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        _, _, rest = path.partition("/api/models/")
        name, action = "/".join(rest.split("/")[:2]), "/".join(rest.split("/")[2:])
        if action == "preupload/main":
            files = json.loads(body)["files"]
            modes = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in files
            ]
            return 200, {"files": modes}
        if action == "commit/main" and self.refuse_commits:
            return 403, {"error": "this token may not write"}
        if action == "commit/main":
            for line in body.splitlines():
                each = json.loads(line)
                if each["key"] == "file":
                    content = base64.b64decode(each["value"]["content"])
                    self.files.setdefault(name, {})[each["value"]["path"]] = content
            return 200, {
                "commitUrl": f"{self.address}/{name}/commit/{'a' * 40}",
                "commitOid": "a" * 40,
            }
        return 404, {"error": f"no {path} here"}


@contextmanager
def serve_hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def reply(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            known = self.headers.get("Authorization") == f"Bearer {hub.token}"
            path = self.path.partition("?")[0]
            status, content = (
                hub.answer(path, body) if known else (401, {"error": "Invalid user token."})
            )
            sent = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = reply

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
