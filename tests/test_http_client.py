"""The one HTTP client: encrypted or not, many at once, and nothing of it that outlives an exchange.

What it makes of odd replies is tested where it is used: tests/rewards/test_remote.py, tests/engines/test_remote.py and
tests/feedback/test_endpoint.py.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ascent.http_client import (
    Client,
    RequestGroup,
    RetryPolicy,
    ServerFailed,
    parse_json_object,
    validate_url,
)
from tests.rewards.servers import dripping, misbehaving, ok, raw
from tests.wall_clock import wall_clock

QUICK = RetryPolicy(timeout=0.5, tries=1)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    words = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    words += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(words, check=True, capture_output=True)
    return key, cert


def test_over_tls_with_a_certificate_that_is_known(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, cert = certificate
    with misbehaving(lambda path, body: (200, b'{"a": 1}')) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        monkeypatch.setattr(server, "handle_error", lambda request, address: None)
        url = server.url.replace("http://127.0.0.1", "https://localhost")
        client = Client(url, token="t", retry=RetryPolicy(timeout=5, tries=1))
        with pytest.raises(ServerFailed, match="CERTIFICATE_VERIFY_FAILED") as error:
            client.post("/x", b"{}", parse_json_object)
        assert error.value.kind == "server_down" and server.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert client.post("/x", b"{}", parse_json_object) == {"a": 1}
        assert [(path, token) for path, _, token in server.requests] == [("/x", "Bearer t")]


@wall_clock
def test_the_deadline_covers_a_handshake_that_drips() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            line, _ = listener.accept()
            with line:
                try:
                    line.sendall(b"\x16\x03\x03\x40\x00")  # a record of 16 KiB, a byte every 0.05 s
                    for _ in range(200):
                        time.sleep(0.05)
                        line.sendall(b"\x02")
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        began = time.monotonic()
        with pytest.raises(ServerFailed) as error:
            Client(f"https://127.0.0.1:{listener.getsockname()[1]}", retry=QUICK).post(
                "/x", b"{}", bytes
            )
        assert error.value.kind == "server_timeout" and time.monotonic() - began < 2
        thread.join()


@wall_clock
def test_no_thread_and_no_connection_is_left() -> None:
    before = threading.active_count()
    with misbehaving(lambda path, body: (200, b"{}")) as server:
        client = Client(server.url, retry=RetryPolicy(timeout=20))
        with ThreadPoolExecutor(8) as threads:
            assert (
                list(threads.map(lambda n: client.post("/x", b"{}", parse_json_object), range(64)))
                == [{}] * 64
            )
    assert client.counts == {"ok": 64}
    until = time.monotonic() + 2
    while (
        threading.active_count() > before and time.monotonic() < until
    ):  # an alarm that was called off has to wake up
        time.sleep(0.01)
    assert threading.active_count() <= before


@wall_clock
def test_a_cancelled_group_ends_at_once() -> None:
    group = RequestGroup()
    with raw(dripping(ok(b"", "Content-Length: 999"), b" ")) as server:
        threading.Timer(0.2, group.cancel).start()
        began = time.monotonic()
        with pytest.raises(ServerFailed, match="cancelled"):
            Client(server.url, retry=RetryPolicy(timeout=20)).post("/x", b"{}", bytes, group)
        with pytest.raises(ServerFailed, match="cancelled"):
            Client(server.url).post("/x", b"{}", bytes, group)
        assert time.monotonic() - began < 2 and server.asked == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'"a"',
        b"{",
        b'{"a": NaN}',
        b'{"a": 1e400}',
        b"\xff{}",
        b"\xef\xbb\xbf{}",
        b"[" * 9999,
    ],
)
def test_what_is_no_object_in_json(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"no JSON|not an object"):
        parse_json_object(body)


def test_urls_and_tokens() -> None:
    assert validate_url("http://[::1]:80/v1/") == "http://[::1]:80/v1"
    assert validate_url("https://host.example") == "https://host.example"
    for token in ("", "two words", "a\r\nX: y", "t\u00f6ken"):
        with pytest.raises(ValueError, match="the token must be one word") as error:
            Client("http://host", token=token)
        assert not token or token not in str(error.value)
