"""A comparing judge's reply is read strictly; one that is down gives no verdict, not a tie."""

from __future__ import annotations

import json

import pytest

from ascent.feedback.endpoint import ComparisonEndpoint, read_verdict
from ascent.feedback.verdicts import NoVerdict, Verdict
from tests.feedback.made import shown
from tests.rewards.servers import NO_HTTP, misbehaving, raw

PATIENCE = {"timeout": 1.0, "tries": 1, "pause": 0.01, "trip": 100}


def saying(text):
    reply = {"choices": [{"message": {"role": "assistant", "content": text}}]}
    return lambda path, body: (200, json.dumps(reply).encode())


def test_what_is_sent_hides_the_models_and_keeps_the_order():
    with misbehaving(saying("Hm.\nVerdict: 2")) as server:
        judge = ComparisonEndpoint(
            url=f"{server.url}/v1", model="j", rubric="Be strict.", retry=PATIENCE
        )
        assert judge.verdicts([shown("apple", "pear", swapped=True)]) == [Verdict("second")]
    path, body, _ = server.requests[0]
    rules, case = (message["content"] for message in body["messages"])
    assert path == "/v1/chat/completions" and "Be strict." in rules and "Which?" in case
    assert case.index("pear") < case.index("apple")
    mark = case.split("\n")[1]
    assert case.split("\n").count(mark) == 6 and mark in rules


@pytest.mark.parametrize(
    "reply", ["", "1", "Verdict: 3", "Verdict: 1\nVerdict: 2", "Verdict: 1\nor not", "verdict: 1"]
)
def test_anything_else_is_no_verdict(reply):
    assert read_verdict(reply or " x") == NoVerdict("bad_verdict")


def test_words():
    assert [read_verdict(f"So.\nVerdict: {word}").word for word in ("1", "2", "tie")] == [
        "first",
        "second",
        "tie",
    ]


def test_nobody_there():
    judge = ComparisonEndpoint(url="http://127.0.0.1:9/v1", model="j", retry=PATIENCE)
    assert judge.verdicts([shown("a", "b")]) == [NoVerdict("server_down")]


@pytest.mark.parametrize("case", NO_HTTP)
def test_odd_replies_give_no_verdict(case):
    reply, kind = NO_HTTP[case]
    with raw(reply) as server:
        judge = ComparisonEndpoint(url=server.url, model="j", retry={**PATIENCE, "timeout": 0.5})
        assert judge.verdicts([shown("a", "b")]) == [NoVerdict(kind)]
