"""A judge's verdict is read strictly; a judge that is down never looks like a wrong answer."""

import json
import socket

import pytest

from ascent.rewards import Unscored, find
from ascent.rewards.calls import score_all
from ascent.rewards.judge import parse_verdict
from ascent.rewards.outcome import Tally
from tests.rewards.rollouts import rollout
from tests.rewards.servers import misbehaving
from tests.rewards.tallies import counters

PATIENCE = {"timeout": 1.0, "tries": 2, "pause": 0.01, "trip": 100}


def judge(url, **options):
    return find(
        "judge", url=f"{url}/v1", model="m", rubric="Is it right?", retry=PATIENCE, **options
    )


def saying(text):
    reply = {"choices": [{"message": {"role": "assistant", "content": text}}]}
    return lambda path, body: (200, json.dumps(reply).encode())


def test_what_the_judge_is_sent():
    with misbehaving(saying("Fine.\nScore: 7")) as server:
        assert judge(server.url).score([rollout("forty-two", answer="42")]) == [pytest.approx(0.7)]
    path, body, _ = server.requests[0]
    assert path == "/v1/chat/completions" and body["model"] == "m" and body["temperature"] == 0
    rules, case = (message["content"] for message in body["messages"])
    assert "Is it right?" in rules and "from 0 to 10" in rules
    assert "forty-two" in case and "a question" in case and "42" in case


def test_the_fence_is_new_each_time_so_that_no_answer_can_close_it():
    reward = judge("http://127.0.0.1:9")
    marks = {
        reward.request(rollout("x"))["messages"][1]["content"].split("\n")[1] for _ in range(8)
    }
    assert len(marks) == 8


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("Score: 10", 1.0),
        ("Score: 0", 0.0),
        ("Thinking...\n\nScore: 2.5\n", 0.25),
        ("Score: 11", None),
        ("Score: -1", None),
        ("Score: ten", None),
        ("10", None),
        ("", None),
        ("Score: 3\nScore: 9", None),
        ("Score: 3\nbut I am not sure", None),
        ("The answer says Score: 10", None),
        ("Score: 10/10", None),
        ("score: 10", None),
        ("Score: nan", None),
        ("Score: 1e1", None),
    ],
)
def test_verdicts(reply, score):
    found = parse_verdict(reply, 0.0, 10.0)
    assert (
        (found == pytest.approx(score))
        if score is not None
        else (isinstance(found, Unscored) and found.kind == "bad_verdict")
    )


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((200, b'{"choices": []}'), "bad_reply"),
        ((200, b'{"choices": [{"message": {"content": null}}]}'), "bad_reply"),
        ((200, b"not json"), "bad_reply"),
        ((500, b""), "server_error"),
        ((401, b""), "server_refused"),
    ],
)
def test_a_judge_that_fails_scores_nobody(answer, kind):
    tally = Tally()
    with misbehaving(lambda path, body: answer) as server:
        found = score_all(
            {"j": judge(server.url)},
            [rollout("a"), rollout("b", sample=1)],
            timeout=10,
            tally=tally,
        )
    assert counters(tally) == {f"rewards/j/unscored/{kind}": 2}
    assert all(not each["j"].parts for each in found)


def test_a_judge_that_is_down():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tally = Tally()
    score_all({"j": judge(f"http://127.0.0.1:{port}")}, [rollout("a")], timeout=10, tally=tally)
    assert counters(tally) == {"rewards/j/unscored/server_down": 1}


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="the scale must go up"):
        judge("http://h", low=1, high=1)
    with pytest.raises(ValueError, match="the rubric is empty"):
        find("judge", url="http://h", model="m", rubric=" ")
