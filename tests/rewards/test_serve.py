"""Server and client speak the same language; strangers are turned away, and no request takes the server down."""

import http.client
import json
import re
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ascent import http_server
from ascent.rewards import find
from ascent.rewards.serve import create_server
from tests.rewards.rollouts import rollout
from tests.wall_clock import wall_clock

ONE = {"messages": [{"role": "user", "content": "q"}], "completion": "ab"}


@contextmanager
def running(score, **options):
    serving = create_server(score, serves="toy", **options)
    thread = threading.Thread(
        target=serving.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield serving
    finally:
        serving.shutdown()
        serving.server_close()
        thread.join()


def lengths(items):
    return [None if completion == "?" else float(len(completion)) for _, completion in items]


def picky(items):
    """As a tokenizer does, it refuses half of a surrogate pair with a TypeError."""
    for messages, completion in items:
        for text in (completion, *(each["content"] for each in messages)):
            try:
                text.encode()
            except UnicodeEncodeError:
                raise TypeError("TextEncodeInput must be Union[TextInputSequence, ...]") from None
    return lengths(items)


def said(serving, *pieces, every=0.0):
    """Status and body of the reply to raw bytes, or (None, b"") where the connection just ends."""
    with socket.create_connection(serving.server_address, timeout=5) as line:
        got = b""
        try:
            for piece in pieces:
                line.sendall(piece)
                time.sleep(every)
            while more := line.recv(1 << 16):
                got += more
        except ConnectionError:
            pass  # closed by the server while we still talked
    found = re.match(rb"HTTP/1\.1 (\d{3}) [A-Za-z ]+\r\n", got)
    return (int(found[1]), got.partition(b"\r\n\r\n")[2]) if found else (None, b"")


def request(body, *headers, first="POST /score HTTP/1.1"):
    length = (
        ()
        if any(each.lower().startswith(("content-length", "transfer")) for each in headers)
        else (len(body),)
    )
    lines = (
        first,
        "Host: h",
        "Connection: close",
        *(f"Content-Length: {n}" for n in length),
        *headers,
        "",
        "",
    )
    return "\r\n".join(lines).encode("latin-1") + body


def ask(serving, method, path, body=None, **headers):
    host, port = serving.server_address[:2]
    connection = http.client.HTTPConnection(host, port, timeout=5)
    connection.request(method, path, body, headers)
    reply = connection.getresponse()
    found = reply.status, json.loads(reply.read())
    connection.close()
    return found


def test_the_client_gets_what_the_function_says():
    with running(lengths) as serving:
        reward = find("remote", url=serving.url, batch=2)
        reward.check_server()
        scores = reward.score([rollout("a"), rollout("abc"), rollout("?")])
    assert scores[:2] == [1.0, 3.0] and scores[2].kind == "server_cannot_say"


def test_a_token_is_needed_where_there_is_one(tmp_path):
    (tmp_path / "t").write_text("s3cret")
    with running(lengths, token="s3cret") as serving:
        assert find("remote", url=serving.url, token_file=str(tmp_path / "t")).score(
            [rollout("ab")]
        ) == [2.0]
        (refused,) = find("remote", url=serving.url).score([rollout("ab")])
        assert refused.kind == "server_refused" and "401" in refused.detail
        assert ask(serving, "GET", "/health")[0] == 401
        assert ask(serving, "GET", "/health", Authorization="Bearer s3cret") == (
            200,
            {"ok": True, "serves": "toy"},
        )


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "/", None, 404, "there is POST /score"),
        ("POST", "/other", "{}", 404, "there is POST /score"),
        ("POST", "/score", "no json", 400, "no JSON"),
        ("POST", "/score", "[]", 400, "not an object"),
        ("POST", "/score", "{}", 400, "no list of rollouts"),
        ("POST", "/score", '{"rollouts": [{}]}', 400, "needs messages"),
        (
            "POST",
            "/score",
            '{"rollouts": [{"messages": [{}], "completion": "a"}]}',
            400,
            "needs a role",
        ),
    ],
)
def test_bad_requests_are_refused_with_the_reason(method, path, body, status, words):
    with running(lengths) as serving:
        found = ask(serving, method, path, body)
    assert found[0] == status and words in found[1]["error"]


def test_other_machines_only_with_a_token():
    with pytest.raises(ValueError, match="a token is needed"):
        create_server(lengths, serves="toy", host="0.0.0.0")
    serving = create_server(lengths, serves="toy", host="0.0.0.0", token="t")
    serving.server_close()
    for host in ("127.0.0.1", "localhost"):
        create_server(lengths, serves="toy", host=host).server_close()


def test_one_request_at_a_time():
    inside, most = 0, 0

    def score(items):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        threading.Event().wait(0.02)
        inside -= 1
        return lengths(items)

    with running(score) as serving:
        find("remote", url=serving.url, batch=1, at_once=8).score(
            [rollout("a", sample=n) for n in range(16)]
        )
    assert most == 1


def scoring(**changes):
    return json.dumps({"rollouts": [{**ONE, **changes}]}).encode()


def message(**changes):
    return scoring(messages=[{"role": "user", "content": "q", **changes}])


GOOD = scoring()
ODD = {
    "half a surrogate pair": (request(scoring(completion="\ud800")), 400),
    "half a pair in a message": (request(message(content="a\udfff")), 400),
    "half a pair as role": (request(message(role="\ud800")), 400),
    "half a pair in bytes": (request(GOOD.replace(b"ab", b"\xed\xa0\x80")), 400),
    "no UTF-8": (request(GOOD.replace(b"ab", b"\xff\xfe")), 400),
    "UTF-16": (request(GOOD.decode().encode("utf-16")), 400),
    "a superscript as length": (request(GOOD, "Content-Length: \xb2"), 400),
    "a negative length": (request(GOOD, "Content-Length: -1"), 400),
    "a length with a sign": (request(GOOD, f"Content-Length: +{len(GOOD)}"), 400),
    "a length of 5,000 digits": (request(GOOD, "Content-Length: " + "1" * 5000), 400),
    "no length": (request(GOOD, "Content-Lengths: 5"), 411),
    "an empty length": (request(GOOD, "Content-Length:"), 400),
    "a huge length": (request(GOOD, "Content-Length: 99999999999"), 413),
    "two lengths": (request(GOOD, f"Content-Length: {len(GOOD)}", "content-length: 2"), 400),
    "chunked": (request(b"2\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), 411),
    "chunked, with a length": (
        request(GOOD, "Transfer-Encoding: chunked", "Content-Length: 2"),
        411,
    ),
    "an empty body": (request(b""), 400),
    "deep": (request(b"[" * 100_000), 400),
    "deep in a message": (request(b'{"rollouts": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"), 400),
    "NaN": (request(GOOD.replace(b'"ab"', b"NaN")), 400),
    "infinity": (request(GOOD.replace(b'"ab"', b"-Infinity")), 400),
    "a number beyond floats": (request(GOOD.replace(b'"ab"', b"1e999")), 400),
    "5,000 digits": (request(GOOD.replace(b'"ab"', b"1" * 5000)), 400),
    "a number as content": (request(message(content=5)), 400),
    "a list as content": (request(message(content=[{"type": "text", "text": "a"}])), 400),
    "a null as role": (request(message(role=None)), 400),
    "a null as completion": (request(scoring(completion=None)), 400),
    "messages that are text": (request(scoring(messages="ab")), 400),
    "rollouts by name": (request(b'{"rollouts": {"messages": []}}'), 400),
    "a rollout that is a number": (request(b'{"rollouts": [5]}'), 400),
    "HEAD": (request(b"", first="HEAD /health HTTP/1.1"), 405),
    "PUT": (request(GOOD, first="PUT /score HTTP/1.1"), 405),
    "GET to score": (request(GOOD, first="GET /score HTTP/1.1"), 405),
    "an unknown method": (request(GOOD, first="BREW /score HTTP/1.1"), 405),
    "a path upwards": (request(b"", first="GET /../../../../etc/passwd HTTP/1.1"), 404),
    "a path upwards, written otherwise": (
        request(b"", first="GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1"),
        404,
    ),
    "a path in an odd encoding": (request(b"", first="GET /h\xe9alth HTTP/1.1"), 400),
    "a whole URL": (request(b"", first="GET http://other/health HTTP/1.1"), 400),
    "small letters": (request(b"", first="get /health HTTP/1.1"), 400),
    "HTTP/0.9": (b"GET /health\r\n\r\n", 400),
    "HTTP/3": (request(b"", first="GET /health HTTP/3.0"), 400),
    "no request": (b"hello\r\n\r\n", 400),
    "zeros": (b"\0" * 1000, 400),
    "a TLS handshake": (bytes.fromhex("16030100c8010000c40303") + bytes(189), 400),
    "a header without a colon": (request(GOOD, "Nonsense"), 400),
    "a folded header": (request(GOOD, "A: b", " c"), 400),
    "a zero in a header": (request(GOOD, "A: b\0c"), 400),
    "a line feed in a header": (request(GOOD, "A: b\nContent-Length: 2"), 400),
    "a space before the colon": (request(GOOD, "Content-Type : a"), 400),
    "a long header": (request(GOOD, "A: " + "b" * 100_000), 431),
    "a header a little too long": (request(GOOD, "A: " + "b" * 16_384), 431),
    "many headers": (request(GOOD, *(f"A{n}: b" for n in range(10_000))), 431),
    "a long first line": (request(b"", first=f"GET /{'a' * 100_000} HTTP/1.1"), 431),
    "only line feeds": (b"GET /health HTTP/1.1\nHost: h\n\n", 408),
    "half a request": (request(GOOD)[:-3], 408),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_requests_get_an_error_in_json_and_no_traceback(case, monkeypatch, capfd):
    monkeypatch.setattr(http_server, "HEAD_SECONDS", 0.5, raising=False)
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.5, raising=False)
    data, status = ODD[case]
    with running(picky) as serving:
        found, body = said(serving, data)
        assert said(serving, request(GOOD)) == (200, b'{"scores": [2.0]}')  # and it goes on
    shown = capfd.readouterr()
    assert "Traceback" not in shown.err + shown.out
    assert found == status
    assert case == "HEAD" or isinstance(json.loads(body)["error"], str)


def test_of_several_requests_on_a_connection_the_first_is_answered():
    with running(lengths) as serving:
        status, body = said(serving, request(GOOD) + request(GOOD) + b"garbage")
    assert status == 200 and body == b'{"scores": [2.0]}'


@wall_clock
def test_the_deadline_is_for_the_whole_request(monkeypatch):
    """A byte every 0.1 s comes always in time; all of them never do."""
    monkeypatch.setattr(http_server, "HEAD_SECONDS", 0.6, raising=False)
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.9, raising=False)
    with running(lengths) as serving:
        for data, seconds in (
            (b"POST /score HTTP/1.1" + b"x" * 60, 0.6),
            (request(b" " * 60), 0.9),
        ):
            start = time.monotonic()
            head, drops = (
                data[:-60],
                [data[place : place + 1] for place in range(len(data) - 60, len(data))],
            )
            with socket.create_connection(serving.server_address) as line:
                line.sendall(head)
                for drop in drops:
                    if select.select([line], [], [], 0.1)[0]:
                        break
                    line.sendall(drop)
                took, reply = time.monotonic() - start, line.recv(1 << 16)
            assert seconds - 0.1 < took < seconds + 1.5 and reply.startswith(b"HTTP/1.1 408 ")


SERVED = """
import resource, sys
from ascent.rewards.serve import create_server
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
serving = create_server(lambda items: [1.0] * len(items), serves="toy", token=sys.argv[1])
print(serving.url, flush=True)
serving.serve_forever()
"""


@wall_clock
def test_an_honest_client_gets_through_while_300_connections_drip(tmp_path):
    """The server may open 256 files, as is common; each connection drips a byte of its headers every 0.2 s."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 512:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    (tmp_path / "token").write_text("s3cret")
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", SERVED, "s3cret"], stdout=subprocess.PIPE, text=True, cwd=root
    )
    over = threading.Event()

    def drip(lines):
        while not over.wait(0.2):
            for line in lines:
                try:
                    line.send(b"x")
                except OSError:
                    continue  # not let in, or thrown out

    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        host, _, port = url.removeprefix("http://").partition(":")
        with ExitStack() as held:
            lines = []
            for _ in range(300):
                line = held.enter_context(socket.socket())
                line.settimeout(0.1)
                if line.connect_ex((host, int(port))) == 0:
                    line.send(b"POST /score HTTP/1.1\r\nX: ")
                lines.append(line)
                time.sleep(0.003)  # so that each is let in before the next comes
            dripping = threading.Thread(target=drip, args=(lines,), daemon=True)
            dripping.start()
            reward = find(
                "remote",
                url=url,
                token_file=str(tmp_path / "token"),
                retry={"timeout": 4, "tries": 1},
            )
            found = [reward.score([rollout("a")])[0] for _ in range(3)]
            over.set()
            dripping.join()
        assert found == [1.0] * 3
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@wall_clock  # the first sleep: by then the server must have read what it was sent
def test_who_has_shown_the_token_is_not_dropped_for_strangers(monkeypatch):
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 8, raising=False)
    known = request(GOOD, "Authorization: Bearer t")
    before = threading.active_count()  # earlier tests may have left some
    with running(lengths, token="t") as serving, ExitStack() as held:
        mine = [
            held.enter_context(socket.create_connection(serving.server_address, timeout=5))
            for _ in range(4)
        ]
        for line in mine:
            line.sendall(known[:-5])
        time.sleep(0.2)
        strangers = [
            held.enter_context(socket.create_connection(serving.server_address)) for _ in range(20)
        ]
        deadline = time.monotonic() + 10
        while len(select.select(strangers, [], [], 0)[0]) < 16 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(select.select(strangers, [], [], 0)[0]) == 16  # the first ones
        assert threading.active_count() - before < 16  # fewer than the strangers who were let go
        for line in mine:
            line.sendall(known[-5:])
            assert line.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


@wall_clock
def test_when_all_are_at_work_one_more_is_told_so(monkeypatch):
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 2, raising=False)
    go = threading.Event()

    def slow(items):
        go.wait(10)
        return lengths(items)

    with running(slow) as serving:
        reward = find(
            "remote", url=serving.url, batch=1, at_once=2, retry={"timeout": 10, "tries": 1}
        )
        scores = []
        busy = threading.Thread(
            target=lambda: scores.extend(reward.score([rollout("a"), rollout("b", sample=1)]))
        )
        busy.start()
        time.sleep(0.3)
        assert said(serving, request(b"", first="GET /health HTTP/1.1"))[0] == 503
        go.set()
        busy.join()
        assert scores == [1.0, 1.0] and ask(serving, "GET", "/health")[0] == 200


def test_64_clients_that_come_at_once_are_all_served():
    """They come while the server looks elsewhere: whom the system does not keep waiting would have to knock again."""
    serving = create_server(lengths, serves="toy")
    with ExitStack() as held:
        lines = [held.enter_context(socket.socket()) for _ in range(64)]
        for line in lines:
            line.setblocking(False)
            line.connect_ex(serving.server_address)
        connected = select.select([], lines, [], 0.5)[1]
        thread = threading.Thread(
            target=serving.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        thread.start()
        for line in connected:
            line.settimeout(5)
            line.sendall(request(GOOD))
        replies = [line.recv(1 << 16) for line in connected]
        serving.shutdown()
        thread.join()
    serving.server_close()
    assert sum(reply.startswith(b"HTTP/1.1 200 ") for reply in replies) == 64


def test_a_refusal_reaches_who_still_sends():
    """8 MB are on their way when the token turns out to be missing: the reply is 401, not a broken connection."""
    with running(lengths, token="t") as serving:
        for _ in range(3):
            (refused,) = find("remote", url=serving.url, retry={"tries": 1}).score(
                [rollout("a" * 8_000_000)]
            )
            assert refused.kind == "server_refused" and "wrong or missing token" in refused.detail


def test_a_mistake_of_the_scoring_is_a_500_and_what_is_not_finite_is_null(capfd):
    def broken(items):
        raise KeyError("s3cret")

    with running(broken) as serving:
        assert said(serving, request(GOOD)) == (500, b'{"error": "score failed: KeyError"}')
    with running(lambda items: [float("nan"), float("inf"), 1]) as serving:
        assert said(serving, request(GOOD)) == (200, b'{"scores": [null, null, 1.0]}')


def test_who_waits_to_be_asked_for_the_body_is_asked():
    with (
        running(lengths) as serving,
        socket.create_connection(serving.server_address, timeout=5) as line,
    ):
        line.sendall(request(GOOD, "Expect: 100-continue")[: -len(GOOD)])
        assert line.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.sendall(GOOD)
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_addresses_that_cannot_be_had():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ValueError, match=f"port={port} cannot be listened on: Address already in use"
        ):
            create_server(lengths, serves="toy", port=port)
    for port in (99999, -1, 65536):
        with pytest.raises(ValueError, match=f"port={port}, but a port lies between 0 and 65535"):
            create_server(lengths, serves="toy", port=port)
    for host in ("192.0.2.1", "a" * 80, "ho st"):
        with pytest.raises(ValueError, match=f"host={host}, port=0 cannot be listened on: "):
            create_server(lengths, serves="toy", host=host, token="t")
