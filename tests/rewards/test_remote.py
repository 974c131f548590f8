"""A reward server that dies, is slow, sends garbage, 500s, wrong counts: counted by name, never a score."""

import json
import socket
import time
import traceback
import tracemalloc

import pytest

from ascent.rewards import find
from ascent.rewards.calls import score_all
from ascent.rewards.outcome import RewardFailed, Tally
from tests.rewards.rollouts import rollout
from tests.rewards.servers import ENDLESS, NO_HTTP, misbehaving, raw, scores
from tests.rewards.tallies import counters
from tests.wall_clock import wall_clock

QUICK = {"timeout": 0.5, "tries": 2, "pause": 0.01, "trip": 100}
FOUR = [rollout(f"t{n}", name=f"p{n}", answer="a", info={"level": n}) for n in range(4)]


def remote(url, **options):
    return find("remote", url=url, **{"retry": QUICK, "batch": 4, **options})


def right(path, body):
    return 200, scores(*(float(item["completion"][1:]) for item in body["rollouts"]))


def counted(reward, rollouts=FOUR):
    tally = Tally()
    found = score_all({"r": reward}, rollouts, timeout=30, tally=tally)
    return found, counters(tally)


def test_scores_arrive_in_order_and_in_batches(tmp_path):
    (tmp_path / "token").write_text("abc\n")
    with misbehaving(right) as server:
        reward = remote(server.url, batch=3, token_file=str(tmp_path / "token"))
        found, counters = counted(reward)
    assert [each["r"].parts[""] for each in found] == [0.0, 1.0, 2.0, 3.0]
    assert counters == {"rewards/r/scored": 4}
    assert sorted(len(body["rollouts"]) for _, body, _ in server.requests) == [1, 3]
    path, body, token = server.requests[0]
    assert path == "/score" and token == "Bearer abc"
    assert (
        body["rollouts"][0]
        == {
            **{
                "prompt_id": "p0",
                "sample": 0,
                "messages": [{"role": "user", "content": "a question"}],
            },
            **{"completion": "t0", "answer": "a", "info": {"level": 0}, "tokens": 4},
        }
        or len(body["rollouts"]) == 1
    )


def test_named_parts_and_null():
    with misbehaving(
        lambda path, body: (200, scores({"a": 1, "b": 0.5}, None, 2, {"a": None, "b": 1}))
    ) as server:
        found, counters = counted(remote(server.url))
    assert found[0]["r"].parts == {"a": 1.0, "b": 0.5} and found[2]["r"].parts == {"": 2.0}
    assert counters == {
        **{
            "rewards/r/scored": 3,
            "rewards/r/unscored/none": 1,
            "rewards/r/unscored/server_cannot_say": 1,
        }
    }


BAD = {
    "garbage": (200, b"<html>", "bad_reply"),
    "no scores": (200, b"{}", "bad_reply"),
    "a list": (200, b"[1, 2, 3, 4]", "bad_reply"),
    "too few": (200, scores(1.0, 2.0, 3.0), "bad_reply"),
    "too many": (200, scores(*[1.0] * 5), "bad_reply"),
    "a word": (200, scores(1.0, "2", 3.0, 4.0), "bad_reply"),
    "NaN": (200, b'{"scores": [NaN, 1, 1, 1]}', "bad_reply"),
    "infinity": (200, b'{"scores": [Infinity, 1, 1, 1]}', "bad_reply"),
    "true": (200, scores(True, 1.0, 1.0, 1.0), "bad_reply"),
    "a number beyond floats": (200, b'{"scores": [1e999, 1, 1, 1]}', "bad_reply"),
    "a whole number beyond floats": (200, scores(10**400, 1.0, 1.0, 1.0), "bad_reply"),
    "5,000 digits": (200, b'{"scores": [' + b"1" * 5000 + b", 1, 1, 1]}", "bad_reply"),
    "a list in a list": (200, scores([1.0], 1.0, 1.0, 1.0), "bad_reply"),
    "no parts": (200, scores({}, 1.0, 1.0, 1.0), "bad_reply"),
    "a part without a name": (200, scores({"": 1.0}, 1.0, 1.0, 1.0), "bad_reply"),
    "half a character as a name": (200, scores({"\ud800": 1.0}, 1.0, 1.0, 1.0), "bad_reply"),
    "a name of two lines": (200, scores({"a\nb": 1.0}, 1.0, 1.0, 1.0), "bad_reply"),
    "a long name": (200, scores({"a" * 1000: 1.0}, 1.0, 1.0, 1.0), "bad_reply"),
    "a word as a part": (200, scores({"a": "1"}, 1.0, 1.0, 1.0), "bad_reply"),
    "500": (500, b"oops", "server_error"),
    "503": (503, b"", "server_error"),
    "429": (429, b"", "server_error"),
    "401": (401, b"who?", "server_refused"),
    "404": (404, b"", "server_refused"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_answer_is_unscored_by_name(case):
    status, data, kind = BAD[case]
    with misbehaving(lambda path, body: (status, data)) as server:
        reward = remote(server.url)
        found, counters = counted(reward)
    assert counters == {f"rewards/r/unscored/{kind}": 4}
    assert all(each["r"].failure and not each["r"].parts for each in found)
    assert len(server.requests) == (
        1 if kind == "server_refused" else 2
    )  # what may pass is tried again
    assert reward.client.counts[kind] == len(server.requests)


@wall_clock
@pytest.mark.parametrize("case", NO_HTTP)
def test_odd_replies_are_unscored_by_name(case):
    reply, kind = NO_HTTP[case]
    with raw(reply) as server:
        start = time.monotonic()
        found, counters = counted(remote(server.url, retry={**QUICK, "tries": 1}), FOUR[:1])
        assert time.monotonic() - start < 2
    assert counters == {f"rewards/r/unscored/{kind}": 1}, found
    assert server.url in found[0]["r"].failure.detail and found[0]["r"].failure.detail.isprintable()


@pytest.mark.parametrize("case", ENDLESS)
def test_an_endless_reply_is_not_taken_in(case):
    """300 MB are offered; a reply to four rollouts may have 1 MiB."""
    with raw(ENDLESS[case]) as server:
        reward = remote(server.url, retry={**QUICK, "timeout": 20, "tries": 1})
        tracemalloc.start()
        try:
            _, counters = counted(reward)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert counters == {"rewards/r/unscored/bad_reply": 4}
    assert (
        peak < 16e6 and server.sent < 30e6
    )  # what was sent and not read lies in the system's buffers


TOKEN = "a-t0ken-that-nobody-may-see"
ECHOES = {
    "refused": (401, TOKEN.encode()),
    "as an error": (403, json.dumps({"error": {"message": f"bad key {TOKEN}"}}).encode()),
    "cut in two": (500, b"x" * (200 - 8) + TOKEN.encode()),
    "cut in two later": (500, b"x" * (500 - 8) + TOKEN.encode()),
    "in a reply": (200, TOKEN.encode()),
    "as a score": (200, scores(TOKEN)),
    "as a score, cut": (200, scores("x" * 50 + TOKEN)),
    "as a name": (200, scores({f"{TOKEN}\n": 1.0})),
    "in a status": (b"HTTP/1.1 %s\r\n\r\n" % TOKEN.encode(), b""),
}


@pytest.mark.parametrize("case", ECHOES)
def test_the_token_is_in_no_message(tmp_path, case):
    (tmp_path / "token").write_text(TOKEN)
    status, data = ECHOES[case]
    with raw(
        status if isinstance(status, bytes) else b"HTTP/1.1 %d Said\r\n\r\n" % status + data
    ) as server:
        reward = remote(server.url, token_file=str(tmp_path / "token"), retry={**QUICK, "tries": 1})
        (failure,) = reward.score(FOUR[:1])
    shown = [str(failure), repr(failure), failure.detail, repr(reward), repr(reward.client)]
    shown += traceback.format_exception(failure)
    assert not any(TOKEN[:8] in each for each in shown)


def test_one_bad_reply_is_mended_by_trying_again():
    replies = iter([(500, b""), (200, scores(1.0, 1.0, 1.0, 1.0))])
    with misbehaving(lambda path, body: next(replies)) as server:
        _, counters = counted(remote(server.url))
    assert counters == {"rewards/r/scored": 4}


@wall_clock
def test_a_slow_server_and_one_that_drips():
    def slow(path, body):
        time.sleep(1.0)
        return right(path, body)

    for drip in (False, True):
        with misbehaving(right if drip else slow) as server:
            server.drip = drip  # a byte every 0.1 s: each arrives in time, all of them never do
            start = time.monotonic()
            _, counters = counted(remote(server.url))
            assert time.monotonic() - start < 2.5
        assert counters == {"rewards/r/unscored/server_timeout": 4}


def test_nobody_there_and_a_connection_that_breaks():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    _, counters = counted(remote(f"http://127.0.0.1:{port}"))
    assert counters == {"rewards/r/unscored/server_down": 4}
    with misbehaving(right) as server:
        server.cut = True
        _, counters = counted(remote(server.url))
    assert sum(counters.values()) == 4 and "rewards/r/scored" not in counters


def test_killed_in_the_middle_the_counts_are_exact():
    """Two batches are scored, then the server is gone: 8 scored, 12 not, and the run goes on."""
    many = [rollout("t1", name=f"p{n}") for n in range(20)]
    with misbehaving(right) as server:
        reward = remote(server.url, at_once=1)

        def dying(path, body):
            if len(server.requests) > 2:
                server.cut = True
            return right(path, body)

        server.answer = dying
        found, counters = counted(reward, many)
    assert counters.pop("rewards/r/scored") == 8
    assert sum(counters.values()) == 12
    assert [each["r"].failure is None for each in found] == [True] * 8 + [False] * 12


def test_by_policy_the_run_stops_instead():
    with (
        misbehaving(lambda path, body: (500, b"")) as server,
        pytest.raises(RewardFailed, match="server_error"),
    ):
        score_all({"r": remote(server.url)}, FOUR, timeout=30, on_error="failures")


@wall_clock
def test_the_circuit_opens_rests_and_closes():
    healthy = False

    def answer(path, body):
        return right(path, body) if healthy else (500, b"")

    with misbehaving(answer) as server:
        retry = {"timeout": 1, "tries": 1, "pause": 0, "trip": 2, "rest": 0.4}
        reward = remote(server.url, batch=1, at_once=1, retry=retry)
        _, counters = counted(reward)
        assert counters == {
            "rewards/r/unscored/server_error": 2,
            "rewards/r/unscored/circuit_open": 2,
        }
        assert len(server.requests) == 2
        time.sleep(0.5)
        _, counters = counted(reward)  # half open: one try, which fails
        assert counters == {
            "rewards/r/unscored/server_error": 1,
            "rewards/r/unscored/circuit_open": 3,
        }
        healthy = True
        time.sleep(0.5)
        _, counters = counted(reward)
        assert counters == {"rewards/r/scored": 4}


def test_a_look_before_the_first_step():
    with pytest.raises(ValueError, match="does not answer"):
        remote("http://127.0.0.1:9").check_server()


def test_a_redirect_is_not_followed():
    with misbehaving(right) as other:
        moved = f"HTTP/1.1 307 Moved\r\nLocation: {other.url}/score\r\nContent-Length: 0\r\n\r\n".encode()
        with raw(moved) as server:
            _, counters = counted(remote(server.url))
        assert counters == {"rewards/r/unscored/server_refused": 4} and other.requests == []


PASSWORDS = [
    "http://me:hunter2@host/v1",
    "https://hunter2@host",
    "http://me:hun/ter2@host",
    "http://me:hunter2?@host",
    "me:hunter2@host",
    "http://host/v1?key=hunter2",
    "http://host/v1#hunter2",
    "http://host:hunter2/v1",
    "http://[hunter2/v1",
]


@pytest.mark.parametrize("url", PASSWORDS)
@pytest.mark.parametrize("use", ["remote", "judge"])
def test_a_url_with_a_password_is_refused_and_not_repeated(use, url):
    with pytest.raises(ValueError, match="url") as error:
        find(use, url=url, **({"model": "m", "rubric": "r"} if use == "judge" else {}))
    assert "hun" not in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "localhost:80"}, "must look like http"),
        ({"url": 80}, "the url is no text"),
        ({"url": "http://h\u00f6st"}, "the url is no text"),
        ({"url": "http://h:99999"}, "host or port cannot be read"),
        ({"url": "http://" + "a" * 80}, "host or port cannot be read"),
        (
            {"url": "http://h", "retry": {"timeout": float("inf")}},
            "timeout=inf, but it must lie between",
        ),
        (
            {"url": "http://h", "retry": {"timeout": float("nan")}},
            "timeout=nan, but it must lie between",
        ),
        (
            {"url": "http://h", "retry": {"timeout": "long"}},
            "timeout='long', but it must be a number",
        ),
        ({"url": "http://h", "retry": {"tries": 1.5}}, "tries=1.5, but it must be a whole number"),
        (
            {"url": "http://h", "retry": {"max_reply_bytes": 0}},
            "max_reply_bytes=0, but it must be at least 1",
        ),
        ({"url": "http://h", "retry": 5}, "retry=5"),
        ({"url": "http://h", "batch": 0}, "at least 1"),
        ({"url": "http://h", "retry": {"timeouts": 1}}, "unexpected keyword"),
        ({"url": "http://h", "retry": {"timeout": 0}}, "above 0"),
        ({"url": "http://h", "token_file": "nowhere"}, "no such file"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        find("remote", **options)


@pytest.mark.parametrize("text", ["", " \n", "two words", "t\u00f6ken", "a\nb", "a\x00b"])
def test_a_token_file_holds_one_word_which_is_not_repeated(tmp_path, text):
    (tmp_path / "token").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="must be one word of ASCII") as error:
        remote("http://h", token_file=str(tmp_path / "token"))
    assert not text.strip() or text.strip() not in str(error.value)


def test_info_that_is_no_json_is_a_mistake_of_the_data():
    found = score_all(
        {"r": remote("http://127.0.0.1:9")}, [rollout(info={"x": object()})], timeout=5
    )
    assert found[0]["r"].failure.kind == "raised" and "plain data" in found[0]["r"].failure.detail
