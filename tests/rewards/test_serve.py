"""The server and the client speak the same language; strangers are turned away."""

import http.client
import json
import threading
from contextlib import contextmanager

import pytest

from ascent.rewards import find
from ascent.rewards.serve import server
from tests.rewards.rollouts import rollout


@contextmanager
def running(score, **options):
    serving = server(score, serves="toy", **options)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield serving
    finally:
        serving.shutdown()
        serving.server_close()
        thread.join()


def lengths(items):
    return [None if completion == "?" else float(len(completion)) for _, completion in items]


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
        reward.check()
        scores = reward.score([rollout("a"), rollout("abc"), rollout("?")])
    assert scores[:2] == [1.0, 3.0] and scores[2].kind == "server_cannot_say"


def test_a_token_is_needed_where_there_is_one(tmp_path):
    (tmp_path / "t").write_text("s3cret")
    with running(lengths, token="s3cret") as serving:
        assert find("remote", url=serving.url, token_file=str(tmp_path / "t")).score([rollout("ab")]) == [2.0]
        (refused,) = find("remote", url=serving.url).score([rollout("ab")])
        assert refused.kind == "server_refused" and "401" in refused.detail
        assert ask(serving, "GET", "/health")[0] == 401
        assert ask(serving, "GET", "/health", Authorization="Bearer s3cret") == (200, {"ok": True, "serves": "toy"})


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "/", None, 404, "there is POST /score"),
        ("POST", "/other", "{}", 404, "there is POST /score"),
        ("POST", "/score", "no json", 400, "no JSON"),
        ("POST", "/score", "[]", 400, "not an object"),
        ("POST", "/score", "{}", 400, "no list of rollouts"),
        ("POST", "/score", '{"rollouts": [{}]}', 400, "needs messages"),
        ("POST", "/score", '{"rollouts": [{"messages": [{}], "completion": "a"}]}', 400, "needs a role"),
    ],
)
def test_bad_requests_are_refused_with_the_reason(method, path, body, status, words):
    with running(lengths) as serving:
        found = ask(serving, method, path, body)
    assert found[0] == status and words in found[1]["error"]


def test_other_machines_only_with_a_token():
    with pytest.raises(ValueError, match="a token is needed"):
        server(lengths, serves="toy", host="0.0.0.0")
    serving = server(lengths, serves="toy", host="0.0.0.0", token="t")
    serving.server_close()
    for host in ("127.0.0.1", "localhost"):
        server(lengths, serves="toy", host=host).server_close()


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
        find("remote", url=serving.url, batch=1, at_once=8).score([rollout("a", sample=n) for n in range(16)])
    assert most == 1
