"""`ascent serve`: the answers are the engine's own, whoever else asks; bad requests hurt nobody but their sender."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ascent.data.render import Renderer
from ascent.engines.copied import copy_weights
from ascent.engines.engine_thread import EngineThread, Job
from ascent.engines.native import sizing
from ascent.engines.native.engine import NativeEngine
from ascent.engines.native.streaming import StreamingEngine
from ascent.engines.openai_replies import _TextStream
from ascent.engines.remote import RemoteSampler
from ascent.engines.token_logprobs import token_logprobs
from ascent.models.load import load
from ascent.records import Completion, Message, Request
from tests.engines.served import KEY, Served, served, tiny_folder
from tests.wall_clock import wall_clock


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tiny_folder(tmp_path_factory.mktemp("models") / "a")) as found:
        yield found


@pytest.fixture(scope="module")
def engine(server: Served) -> NativeEngine:
    """The engine of this process, with the weights that the server has."""
    model = load(server.folder)
    return NativeEngine(model, Renderer(model.tokenizer).stop_ids)


def requests_of(count: int, **options: Any) -> list[Request]:
    prompts = [tuple(range(5 + n % 7, 12 + n % 11)) for n in range(count)]
    return [
        Request(f"p{n}", n % 3, tokens, 4 + n % 13, seed=n % 5, **options)
        for n, tokens in enumerate(prompts)
    ]


def by_key(completions: Any) -> dict[tuple[str, int], Completion]:
    return {(each.prompt_id, each.sample): each for each in completions}


def sampler_of(server: Served) -> RemoteSampler:
    return RemoteSampler(server.url, "tiny", server.server._engine.stop_ids, key=KEY, exact=True)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.7, "top_p": 0.8}, {"greedy": True}, {"min_new_tokens": 3}]
)
def test_tokens_and_log_probs_are_those_of_the_engine_in_process(
    server: Served, engine: NativeEngine, options: dict[str, Any]
) -> None:
    wanted = requests_of(24, **options)
    assert by_key(sampler_of(server).sample(wanted)) == by_key(engine.sample(wanted))


def test_64_clients_at_once_get_what_each_would_get_alone(
    server: Served, engine: NativeEngine
) -> None:
    """Each client sends one request after the other, on connections of its own, some as streams."""
    wanted = requests_of(320)
    alone = by_key(engine.sample(wanted))

    def client(number: int) -> None:
        for request in wanted[number::64]:
            body = {
                "prompt": list(request.tokens),
                "max_tokens": request.max_new_tokens,
                "seed": request.seed,
            }
            body |= {
                "prompt_id": request.prompt_id,
                "sample": request.sample,
                "logprobs": 0,
                "return_token_ids": True,
            }
            stream = number % 4 == 0
            status, reply = server.ask("/v1/completions", body | {"stream": stream})
            assert status == 200, reply
            choices = events(reply) if stream else reply["choices"]
            tokens = [token for each in choices for token in each["token_ids"]]
            logprobs = [value for each in choices for value in each["logprobs"]["token_logprobs"]]
            same = alone[request.prompt_id, request.sample]
            assert (tuple(tokens), tuple(logprobs)) == (same.tokens, same.logprobs)

    with ThreadPoolExecutor(64) as threads:
        list(threads.map(client, range(64)))
    assert server.server._engine.idle and server.server._engine.stats().used_blocks == 0


def test_ids_and_log_probs_alone(server: Served) -> None:
    body = {
        "prompt": "abc",
        "max_tokens": 9,
        "seed": 5,
        "logprobs": 0,
        "return_token_ids": True,
        "stop": ["1"],
    }
    (whole,), (short,) = (
        server.ask("/v1/completions", body | {"return_text": text})[1]["choices"]
        for text in (True, False)
    )
    assert short["logprobs"] == {"token_logprobs": whole["logprobs"]["token_logprobs"]}
    differ = {name for name in whole if whole[name] != short[name]}
    assert (
        differ == ({"text", "logprobs"} if whole["text"] else {"logprobs"}) and short["text"] == ""
    )


def events(text: str) -> list[Any]:
    """The choices of a stream's events; it must end as streams do."""
    lines = text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [
        choice
        for line in lines[:-2]
        for choice in json.loads(line.removeprefix("data: "))["choices"]
    ]


def test_a_stream_says_what_the_whole_reply_says(server: Served) -> None:
    chat = {
        "messages": [{"role": "user", "content": "1+1="}],
        "max_tokens": 40,
        "seed": 3,
        "n": 2,
        "logprobs": True,
    }
    _, whole = server.ask("/v1/chat/completions", chat)
    _, text = server.ask(
        "/v1/chat/completions", chat | {"stream": True, "stream_options": {"include_usage": True}}
    )
    pieces = events(text)
    assert len(pieces) > 6  # it did not wait for the end
    for index, choice in enumerate(whole["choices"]):
        own = [each for each in pieces if each["index"] == index]
        assert "".join(each["delta"]["content"] for each in own) == choice["message"]["content"]
        assert [row for each in own for row in each["logprobs"]["content"]] == choice["logprobs"][
            "content"
        ]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
    assert json.loads(text.split("\n\n")[-3].removeprefix("data: "))["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == sum(
        len(each["logprobs"]["content"]) for each in whole["choices"]
    )


def test_a_chat_is_rendered_with_the_template(server: Served, engine: NativeEngine) -> None:
    renderer = Renderer(server.model.tokenizer)
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
    ]
    body = {
        "messages": messages,
        "max_completion_tokens": 5,
        "temperature": 0,
        "return_token_ids": True,
    }
    _, reply = server.ask("/v1/chat/completions", body)
    prompt = renderer.prompt([Message("system", "s"), Message("user", "q")])
    (same,) = engine.sample([Request("x", 0, prompt, 5, seed=0, greedy=True)])
    assert reply["choices"][0]["token_ids"] == list(same.tokens)
    assert reply["choices"][0]["prompt_token_ids"] == list(prompt)


def test_echo_has_the_log_probs_of_training(server: Served) -> None:
    prompt = [5, 6, 7, 8, 9]
    _, reply = server.ask(
        "/v1/completions", {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 1}
    )
    expected = token_logprobs(server.model, prompt, 1)
    logprobs = reply["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [None, *(each.logprob for each in expected[1:] if each)]
    assert logprobs["top_logprobs"][0] is None and all(
        len(each) == 1 for each in logprobs["top_logprobs"][1:]
    )
    _, longer = server.ask(
        "/v1/completions",
        {"prompt": prompt, "max_tokens": 3, "echo": True, "logprobs": 1, "temperature": 0},
    )
    assert longer["choices"][0]["logprobs"]["token_logprobs"][:5] == logprobs["token_logprobs"]
    sampled = longer["choices"][0]["logprobs"]
    assert [max(top.values()) for top in sampled["top_logprobs"][5:]] == sampled["token_logprobs"][
        5:
    ]  # greedy


def test_an_echo_alone_may_fill_the_context(server: Served) -> None:
    longest = server.server._engine.longest_sequence
    body = {"prompt": [5] * longest, "max_tokens": 0, "echo": True, "logprobs": 0}
    _, reply = server.ask("/v1/completions", body)
    assert len(reply["choices"][0]["logprobs"]["token_logprobs"]) == longest
    for longer in ({"max_tokens": 1}, {"prompt": [5] * (longest + 1)}):
        status, reply = server.ask("/v1/completions", body | longer)
        assert status == 400 and f"a sequence holds {longest}" in reply["error"]["message"]


def test_a_stop_text_ends_the_text_before_it(server: Served) -> None:
    body = {"prompt": "abc", "max_tokens": 30, "temperature": 0}
    _, whole = server.ask("/v1/completions", body)
    text = whole["choices"][0]["text"]
    stop = text[6:8]
    for stream in (False, True):
        _, reply = server.ask("/v1/completions", body | {"stop": stop, "stream": stream})
        choices = events(reply) if stream else reply["choices"]
        assert "".join(each["text"] for each in choices) == text[: text.index(stop)]
        assert choices[-1]["finish_reason"] == "stop"


REFUSED = [
    ("/v1/completions", b"no json", 400, "no JSON"),
    (
        "/v1/completions",
        {},
        400,
        "prompt=None, but it must be a text, token ids, or a list of either",
    ),
    ("/v1/completions", {"prompt": ""}, 400, "prompt has no tokens"),
    ("/v1/completions", {"prompt": [1.5]}, 400, "it must be a text, token ids"),
    ("/v1/completions", {"prompt": [10**6]}, 400, "in a vocabulary of"),
    ("/v1/completions", {"prompt": "a\ud800"}, 400, "it must be a text"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 10**6}, 400, "but a sequence holds 1024"),
    (
        "/v1/completions",
        {"prompt": "a", "max_tokens": 0},
        400,
        "max_tokens=0, but it must be a whole number from 1",
    ),
    (
        "/v1/completions",
        {"prompt": "a", "temperature": "hot"},
        400,
        "temperature='hot', but it must be a number",
    ),
    (
        "/v1/completions",
        {"prompt": "a", "temperature": -1},
        400,
        "temperature=-1, but it must be a number",
    ),
    (
        "/v1/completions",
        {"prompt": "a", "n": 129},
        400,
        "n=129, but it must be a whole number from 1 to 128",
    ),
    ("/v1/completions", {"prompt": ["a"] * 100, "n": 100}, 400, "are more than 1024 completions"),
    (
        "/v1/completions",
        {"prompt": "a", "logit_bias": {"5": 1}},
        400,
        "logit_bias={'5': 1} is not supported",
    ),
    ("/v1/completions", {"prompt": "a", "guided_json": {}}, 400, "guided_json is not supported"),
    (
        "/v1/completions",
        {"prompt": "a", "frequency_penalty": 0.5},
        400,
        "frequency_penalty=0.5 is not supported",
    ),
    (
        "/v1/completions",
        {"prompt": "a", "stop_token_ids": [10**6]},
        400,
        "stop ids [1000000] in a vocabulary of",
    ),
    (
        "/v1/completions",
        {"prompt": "a", "temperature": 1e-40},
        400,
        "temperature=1e-40, but it must be at least",
    ),
    ("/v1/completions", {"prompt": "a", "ignore_eos": True}, 400, "ignore_eos is not supported"),
    (
        "/v1/completions",
        {"prompt": "a", "stream": True, "logprobs": 2},
        400,
        "use stream=false, or logprobs=0",
    ),
    (
        "/v1/completions",
        {"prompt": "a", "return_text": False},
        400,
        "return_text=false needs return_token_ids=true",
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "a"}],
            "return_text": False,
            "return_token_ids": True,
        },
        400,
        "return_text=false is for completions",
    ),
    (
        "/v1/completions",
        {"prompt": "a", "model": "gpt"},
        404,
        "there is no model 'gpt' here; this server has 'tiny'",
    ),
    (
        "/v1/chat/completions",
        {"messages": []},
        400,
        "messages=[], but it must be a list of messages",
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "wizard", "content": "a"}]},
        400,
        "messages[0] has role 'wizard'",
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user"}]},
        400,
        "messages[0] has no text as its content",
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}], "tools": [{}]},
        400,
        "tools=",
    ),
    ("/v1/weights", {"version": -1, "folder": "x"}, 400, "weights are given as"),
    (
        "/v1/weights",
        {"version": 1, "folder": "/nowhere"},
        400,
        "is no model folder that this machine can read",
    ),
    ("/v1/elsewhere", {}, 404, "there is POST /v1/completions"),
    ("/v1/completions", None, 405, "no GET /v1/completions"),
    ("/tokenize", {"prompt": 3}, 400, "prompt is no text"),
]


@pytest.mark.parametrize(("path", "body", "status", "words"), REFUSED)
def test_a_bad_request_is_refused_with_the_reason(
    server: Served, path: str, body: Any, status: int, words: str
) -> None:
    found = server.ask(path, body)
    assert found[0] == status and words in found[1]["error"]["message"], found


def test_without_the_key_there_is_nothing(server: Served) -> None:
    for path in ("/v1/models", "/health", "/v1/weights"):
        assert server.ask(path, None, key="guess")[0] == 401


def test_an_oversized_body_is_refused_unread(server: Served) -> None:
    with server.connect() as line:
        head = f"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {1 << 30}\r\n\r\n"
        line.sendall(head.encode())
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 413 ")


@wall_clock
def test_slow_and_absent_readers_do_not_hold_up_others(server: Served) -> None:
    """Sixteen clients ask for long streams and read nothing; one that leaves has its request given up."""
    body = json.dumps(
        {"prompt": "a", "max_tokens": 900, "min_tokens": 900, "n": 4, "stream": True}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    lines = [server.connect() for _ in range(16)]
    for line in lines:
        line.sendall(head.encode() + body)
    started = time.monotonic()
    assert server.ask("/v1/completions", {"prompt": "b", "max_tokens": 4})[0] == 200
    assert time.monotonic() - started < 20
    for line in lines:
        line.close()
    until = time.monotonic() + 20
    while not server.server._engine.idle and time.monotonic() < until:
        time.sleep(0.05)
    assert server.server._engine.idle  # long before 16 * 4 * 900 tokens were sampled


@wall_clock
def test_a_client_that_hangs_up_ends_its_request(server: Served) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 1000, "min_tokens": 1000, "n": 8}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    with server.connect() as line:
        line.sendall(head.encode() + body)
        time.sleep(0.3)
    before = server.server._engine.stats().requests
    until = time.monotonic() + 20
    while not server.server._engine.idle and time.monotonic() < until:
        time.sleep(0.05)
    assert server.server._engine.idle and server.server._engine.stats().requests == before


def test_equal_requests_at_once_get_equal_answers(server: Served) -> None:
    """They have one key in the engine: the second waits for the first."""
    body = {"prompt": "abc", "max_tokens": 8, "seed": 5, "return_token_ids": True}
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda _: server.ask("/v1/completions", body), range(8)))
    assert len({str(reply["choices"][0]["token_ids"]) for _, reply in replies}) == 1
    unseeded = {"prompt": ["abc", "abc"], "max_tokens": 8, "return_token_ids": True}
    _, reply = server.ask("/v1/completions", unseeded)
    assert reply["choices"][0]["token_ids"] != reply["choices"][1]["token_ids"]


def test_an_engine_that_fails_fails_its_requests_alone(
    server: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> list[Completion]:
        raise MemoryError

    monkeypatch.setattr(server.server._engine, "step", broken)
    status, reply = server.ask("/v1/completions", {"prompt": "a"})
    assert status == 500 and reply["error"]["type"] == "server_error"
    monkeypatch.undo()
    assert server.ask("/v1/completions", {"prompt": "a"})[0] == 200


def test_a_request_that_cannot_start_fails_alone(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are admitted between the same two steps, the one that fails first."""
    engine, thread = server.server._engine, server.server._thread
    add = engine.add

    def no_memory_for_bad(request: Request) -> None:
        if request.prompt_id == "bad":
            raise MemoryError
        add(request)

    monkeypatch.setattr(engine, "add", no_memory_for_bad)
    bad, good = (
        Job([Request(name, n, (5, 6), 4, seed=0) for n in range(2)]) for name in ("bad", "good")
    )
    with thread._changed:
        thread._commands += [lambda: thread._submit(bad), lambda: thread._submit(good)]
        thread._changed.notify()
    assert isinstance(bad.outputs.get(timeout=20), MemoryError)
    assert all(good.outputs.get(timeout=20).completion for _ in range(2))  # type: ignore[union-attr]
    assert bad.outputs.empty() and engine.idle


def test_any_top_k_is_taken(server: Served) -> None:
    body = {"prompt": "abc", "max_tokens": 8, "seed": 5, "return_token_ids": True}
    plain, huge = (
        server.ask("/v1/completions", body | more)[1] for more in ({}, {"top_k": 3 * 10**9})
    )
    assert plain["choices"][0]["token_ids"] == huge["choices"][0]["token_ids"]


def test_a_chat_without_a_limit_fits_a_small_kv_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizing, "_free_bytes", lambda device: 2**20)
    with served(tiny_folder(tmp_path / "a")) as small:
        engine = small.server._engine
        assert engine.longest_sequence < engine.max_model_len
        (model,) = small.ask("/v1/models")[1]["data"]
        assert model["max_model_len"] == engine.longest_sequence
        chat = {"messages": [{"role": "user", "content": "1+1="}], "seed": 3}
        status, reply = small.ask("/v1/chat/completions", chat)
        assert status == 200 and reply["usage"]["total_tokens"] <= engine.longest_sequence


STOPS = ("用户", "\n🙂", "é", "ab")
PIECES = ("用", "户", "\n", "🙂", "🙃", "é", "a", "b", "ab")


@given(
    st.lists(st.sampled_from(PIECES), max_size=12),
    st.sets(st.sampled_from(STOPS), max_size=2),
    st.data(),
)
def test_a_stream_ends_where_the_whole_text_ends(
    pieces: list[str], stops: set[str], data: st.DataObject
) -> None:
    """Tokens are bytes, so that characters arrive in parts."""

    class Bytes:
        def _text(self, tokens: Sequence[int]) -> str:
            return bytes(tokens).decode(errors="replace")

    tokens = "".join(pieces).encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, max(len(tokens), 1)), max_size=6)))
    request = Request("p", 0, (1,), 1, seed=0, stop=tuple(stops))
    stream = _TextStream(Bytes(), request)  # type: ignore[arg-type]
    sent = "".join(stream.add(tokens[:cut], last=False) for cut in cuts if cut <= len(tokens))
    sent += stream.add(tokens, last=True)
    whole = tokens.decode()
    assert (
        sent
        == whole[: min((at for stop in stops if (at := whole.find(stop)) >= 0), default=len(whole))]
    )


# New weights.


def test_every_answer_is_of_one_version_and_new_weights_change_answers(tmp_path: Path) -> None:
    """Weights arrive while 32 clients ask: each answer equals that of the engine with the version it names."""
    old, new = tiny_folder(tmp_path / "old"), tiny_folder(tmp_path / "new", seed=1)
    wanted = requests_of(96)
    expected = {}
    for version, folder in ((0, old), (7, new)):
        model = load(folder)
        expected[version] = by_key(
            NativeEngine(model, Renderer(model.tokenizer).stop_ids).sample(wanted)
        )
    with served(old) as server, ThreadPoolExecutor(32) as threads:
        before = server.ask("/v1/models")[1]["data"][0]
        sampler, seen = sampler_of(server), set()

        def ask(request: Request) -> None:
            from ascent.http_client import RequestGroup

            found, choice = sampler.complete(request, RequestGroup())
            version = choice["weight_version"]
            same = expected[version][request.prompt_id, request.sample]
            assert (found.tokens, found.logprobs) == (same.tokens, same.logprobs)
            seen.add((version, choice["weights_id"]))

        futures = [threads.submit(ask, request) for request in wanted[:48]]
        status, reply = server.ask("/v1/weights", {"version": 7, "folder": str(new)})
        assert status == 200 and reply["version"] == 7
        futures += [threads.submit(ask, request) for request in wanted[48:]]
        for future in futures:
            future.result()
        after = server.ask("/v1/models")[1]["data"][0]
    assert (
        after["weight_version"] == 7
        and after["weights_id"] == reply["weights_id"] != before["weights_id"]
    )
    assert (7, reply["weights_id"]) in seen and seen <= {
        (0, before["weights_id"]),
        (7, reply["weights_id"]),
    }


def test_new_weights_wait_for_running_requests(tmp_path: Path) -> None:
    thread = EngineThread(StreamingEngine(load(tiny_folder(tmp_path / "model")), {-1}))
    thread.start()
    outputs = thread.results(Job([Request("p", 0, (5, 6, 7), 400, seed=0)], partial=True))
    next(outputs)  # it runs
    idle: list[bool] = []
    thread.set_weights(1, lambda: idle.append(thread.engine.idle))
    thread.close()
    assert idle == [True]


def test_weights_of_another_model_are_refused_and_change_nothing(
    server: Served, tmp_path: Path
) -> None:
    before = server.ask("/v1/models")
    other = tiny_folder(tmp_path / "qwen", kind="qwen2")
    status, reply = server.ask("/v1/weights", {"version": 1, "folder": str(other)})
    assert status == 400 and "weights of another model" in reply["error"]["message"]
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    assert server.ask("/v1/weights", {"version": 1, "folder": str(tmp_path / "broken")})[0] in (
        400,
        500,
    )
    assert server.ask("/v1/models") == before


def test_copied_weights_are_equal(tmp_path: Path) -> None:
    one, two = (load(tiny_folder(tmp_path / str(seed), seed=seed)) for seed in (0, 1))
    tensors = dict(one.module.named_parameters())
    copy_weights(two, one)
    assert all(
        torch.equal(each, dict(two.module.named_parameters())[name])
        for name, each in tensors.items()
    )


@wall_clock
def test_closing_ends_waiting_clients(tmp_path: Path) -> None:
    server = Served(tiny_folder(tmp_path / "a"))
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(
                server.ask(
                    "/v1/completions",
                    {"prompt": "a", "max_tokens": 1000, "min_tokens": 1000, "n": 64},
                )[0]
            )
        except OSError as error:
            found.append(error)

    waiting = threading.Thread(target=ask)
    waiting.start()
    time.sleep(0.3)
    server.stop()
    waiting.join(20)
    assert not waiting.is_alive() and found != [200]
