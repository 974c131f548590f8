"""Servers fail in every way that servers do: each request is answered once, by the weights that it was meant for."""

from __future__ import annotations

import errno
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ascent import progress
from ascent.checkpoints.manifest import CheckpointError
from ascent.data.render import Renderer
from ascent.engines import fleet as fleets
from ascent.engines.fleet import ServerFleet
from ascent.engines.native.engine import NativeEngine
from ascent.engines.remote import RemoteError
from ascent.http_server import Call, HTTPError, Route
from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.records import Completion, Request
from ascent.setup import samplers
from ascent.setup.policy_weights import PolicyWeights
from ascent.setup.samplers import Engine, ServedPolicy, fleet_of
from tests.engines.served import KEY, Served, served, tiny_folder
from tests.wall_clock import wall_clock

REQUESTS = [
    Request(f"p{n}", n % 2, tuple(range(5, 9 + n % 5)), 6 + n % 9, seed=n) for n in range(48)
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What servers start with (old), and the policy that they should sample (new)."""
    place = tmp_path_factory.mktemp("models")
    tiny_folder(place / "old"), tiny_folder(place / "new", seed=1)
    return place


@pytest.fixture(scope="module")
def expected(folders: Path) -> dict[tuple[str, int], Completion]:
    model = load(folders / "new")
    engine = NativeEngine(model, Renderer(model.tokenizer).stop_ids)
    engine.version = 3
    return by_key(engine.sample(REQUESTS))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "PAUSE_SECONDS", 0.1)
    monkeypatch.setenv(samplers.SERVER_KEY, KEY)


@pytest.fixture
def two(folders: Path) -> Iterator[list[Served]]:
    with ExitStack() as stack:
        yield [stack.enter_context(served(folders / "old")) for _ in range(2)]


def by_key(completions: Iterator[Completion]) -> dict[tuple[str, int], Completion]:
    found = list(completions)
    keyed = {(each.prompt_id, each.sample): each for each in found}
    assert len(keyed) == len(found)  # none twice
    return keyed


def policy(folders: Path) -> LanguageModel:
    return load(folders / "new")


def served_policy(model: LanguageModel, longest: int = 64) -> ServedPolicy:
    return ServedPolicy(model.tokenizer, Renderer(model.tokenizer).stop_ids, longest, "float32")


def fleet(
    servers: list[Served], folders: Path, place: Path, *, timeout: float = 30.0
) -> ServerFleet:
    model = policy(folders)
    engine = Engine("remote", tuple(each.url for each in servers), timeout)
    found = fleet_of(
        engine, served_policy(model), place / "log", policy=PolicyWeights(model, place / "weights")
    )
    found.set_weights(3, {})
    for each in found._servers:
        each.sampler.at_once = 4  # so that something is left to do when a fault comes
    return found


def during(
    sampler: ServerFleet, fault: Callable[[], None], after: int = 4
) -> dict[tuple[str, int], Completion]:
    """Sample, with a fault once a few completions are there; the rest arrives after it."""
    found = []
    stream = sampler.sample(REQUESTS)
    for _ in range(after):
        found.append(next(stream))
    fault()
    return by_key(iter([*found, *stream]))


def slowed(server: Served, seconds: float) -> None:
    """Completions take this long from now on."""
    inner = server.http.routes["/v1/completions"]

    def handle(call: Call) -> object:
        time.sleep(seconds)
        return inner.handle(call)

    server.http.routes["/v1/completions"] = Route("POST", handle, inner.max_bytes)  # type: ignore[arg-type]


@pytest.mark.parametrize("concurrency", [3, 256])
def test_how_many_requests_a_server_works_on(
    two: list[Served], folders: Path, tmp_path: Path, concurrency: int
) -> None:
    """As many as it is given at a time, and no more: the others get theirs when one is done."""
    now, most, change = 0, 0, threading.Lock()
    inner = two[0].http.routes["/v1/completions"]

    def handle(call: Call) -> object:
        nonlocal now, most
        with change:
            now, most = now + 1, max(most, now + 1)
        time.sleep(0.2)
        with change:
            now -= 1
        return inner.handle(call)

    broken(two[0], handle)
    model = policy(folders)
    engine = Engine("remote", (two[0].url,), 30.0, concurrency)
    sampler = fleet_of(
        engine,
        served_policy(model),
        tmp_path / "log",
        policy=PolicyWeights(model, tmp_path / "weights"),
    )
    sampler.set_weights(3, {})
    assert len(by_key(sampler.sample(REQUESTS))) == len(REQUESTS)
    assert min(concurrency, len(REQUESTS)) / 2 < most <= concurrency
    sampler.close()


def broken(server: Served, handle: Callable[[Call], object]) -> None:
    server.http.routes["/v1/completions"] = Route("POST", handle, 1 << 20)  # type: ignore[arg-type]


def overloaded(call: Call) -> object:
    raise HTTPError(503, "try again")


def stopped(server: Served) -> None:
    server.http.shutdown()
    server.http.server_close()


@wall_clock
def test_answers_are_those_of_the_new_weights(
    two: list[Served], folders: Path, expected: dict[tuple[str, int], Completion], tmp_path: Path
) -> None:
    sampler = fleet(two, folders, tmp_path)
    assert by_key(sampler.sample(REQUESTS)) == expected
    assert [each.server._engine.version for each in two] == [3, 3]
    assert all(each.server._engine.stats().requests > 0 for each in two)  # both worked
    assert [each.name for each in (tmp_path / "weights").iterdir()] == ["3"]
    sampler.close()
    assert not (tmp_path / "weights").exists()


FAULTS: dict[str, Callable[[Served, Path], None]] = {
    "killed": lambda server, folders: stopped(server),
    "restarted with old weights": lambda server, folders: server.restart(),
    "slow": lambda server, folders: slowed(server, 3.0),
    "answers 503": lambda server, folders: broken(server, overloaded),
    "answers nonsense": lambda server, folders: broken(server, lambda call: {"choices": "none"}),
    "answers other tokens than it names log-probs for": lambda server, folders: broken(
        server,
        lambda call: {"choices": [{"token_ids": [5, 6], "logprobs": {"token_logprobs": [0.0]}}]},
    ),
    "given other weights by somebody": lambda server, folders: post(server, 3, folders / "old"),
    "given an older version by somebody": lambda server, folders: post(server, 2, folders / "old"),
}


def post(server: Served, version: int, folder: Path) -> None:
    assert server.ask("/v1/weights", {"version": version, "folder": str(folder)})[0] == 200


@wall_clock
@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_fails_in_mid_step(
    fault: str,
    two: list[Served],
    folders: Path,
    expected: dict[tuple[str, int], Completion],
    tmp_path: Path,
) -> None:
    sampler = fleet(two, folders, tmp_path, timeout=1.0 if fault == "slow" else 30.0)
    assert during(sampler, lambda: FAULTS[fault](two[0], folders)) == expected
    sampler.close()


def test_both_servers_restarted_get_the_weights_again(
    two: list[Served], folders: Path, expected: dict[tuple[str, int], Completion], tmp_path: Path
) -> None:
    sampler = fleet(two, folders, tmp_path)
    assert during(sampler, lambda: [each.restart() for each in two] and None) == expected
    assert 3 in [each.server._engine.version for each in two]
    sampler.close()


def test_without_any_server_the_step_waits_and_then_fails_with_the_reasons(
    two: list[Served], folders: Path, expected: dict[tuple[str, int], Completion], tmp_path: Path
) -> None:
    sampler = fleet(two[:1], folders, tmp_path)
    port = two[0].port
    stopped(two[0])
    back = threading.Timer(1.5, lambda: two[0].start(port))
    back.start()
    assert by_key(sampler.sample(REQUESTS)) == expected
    back.join()
    stopped(two[0])
    sampler.patience = 0.5
    with pytest.raises(
        RemoteError, match=r"no server for 0.5 s \(http://127.0.0.1:\d+/v1: .*Connection refused"
    ):
        list(sampler.sample(REQUESTS))
    two[0].start(port)
    assert by_key(sampler.sample(REQUESTS)) == expected  # and is not lost for good


def test_what_a_step_waits_for_is_said(
    two: list[Served],
    folders: Path,
    expected: dict[tuple[str, int], Completion],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "FIRST_NOTE", 0.0)
    monkeypatch.setattr(progress, "SECOND_NOTE", 3600.0)
    sampler = fleet(two, folders, tmp_path)
    said: list[str] = []
    ports = [each.port for each in two]
    stopped(two[0])
    with progress.notes_to(said.append):
        assert by_key(sampler.sample(REQUESTS)) == expected
        one = f"1 of 2 servers missing for 0 s, since [0-9:]+: {two[0].url}: .*Connection refused; 1 samples on"
        assert [bool(re.fullmatch(one, each)) for each in said] == [True], said
        stopped(two[1])

        def back(
            text: str,
        ) -> None:  # the servers come back once the waiting was said, on any machine
            said.append(text)
            if "no server to sample with" in text:
                for each, port in zip(two, ports, strict=True):
                    each.start(port)

        with progress.notes_to(back):
            assert by_key(sampler.sample(REQUESTS)) == expected
            sampler.set_weights(4, {})
            by_key(sampler.sample(REQUESTS))
    none = f"no server to sample with for 0 s, since [0-9:]+: {two[0].url}: .*; {two[1].url}: .*; the step waits, and"
    assert re.match(none, said[1]) and said[1].endswith("the run ends after 300 s without any"), (
        said
    )
    assert re.match(f"sampling goes on with {two[0].url}, {two[1].url} after", said[2]), said
    sampler.close()


def test_a_full_disk_is_said_before_anything_is_sampled_and_can_be_repaired(
    two: list[Served], folders: Path, expected: dict[tuple[str, int], Completion], tmp_path: Path
) -> None:
    sampler = fleet(two, folders, tmp_path)
    model = policy(folders)
    original = model.save

    def full(folder: str | Path) -> None:
        original(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    model.save = full  # type: ignore[method-assign]
    sampler.weights = PolicyWeights(model, tmp_path / "weights").folders(adapter=False)
    with pytest.raises(
        CheckpointError,
        match=r"could not be written: .*No space left on device; free some space, or",
    ):
        sampler.set_weights(4, {})
    assert [each.name for each in (tmp_path / "weights").iterdir()] == ["3"]  # nothing half-written
    with pytest.raises(CheckpointError):
        next(iter(sampler.sample(REQUESTS)))  # not with the old weights either
    model.save = original  # type: ignore[method-assign]
    sampler.set_weights(3, {})
    assert by_key(sampler.sample(REQUESTS)) == expected


def test_a_request_that_no_server_can_take_ends_the_step_at_once(
    two: list[Served], folders: Path, tmp_path: Path
) -> None:
    sampler = fleet(two, folders, tmp_path)
    with pytest.raises(RemoteError, match=r"request 'long'/0: .*but a sequence holds 1024"):
        list(sampler.sample([Request("long", 0, (5, 6), 5000, seed=0)]))


def test_no_new_weights_while_completions_are_in_flight(
    two: list[Served], folders: Path, tmp_path: Path
) -> None:
    sampler = fleet(two, folders, tmp_path)
    stream = sampler.sample(REQUESTS)
    next(stream)
    with pytest.raises(RuntimeError, match="their tokens would mix two versions"):
        sampler.set_weights(4, {})
    stream.close()  # type: ignore[attr-defined]


# Before the first step.


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("qwen2", {}, "has another vocabulary than the policy"),
        (
            "llama",
            {"max_model_len": 32},
            "takes 32 tokens, but a sequence may have 64; start it with --max-model-len 64",
        ),
    ],
)
def test_a_server_that_does_not_fit_is_refused_at_the_start(
    kind: str, options: dict[str, int], words: str, folders: Path, tmp_path: Path
) -> None:
    other = tiny_folder(tmp_path / kind, kind=kind)
    if kind == "qwen2":  # another vocabulary of the same size
        change_vocabulary(other)
    with served(other, **options) as server, pytest.raises(ValueError, match=words):
        fleet([server], folders, tmp_path)


def change_vocabulary(folder: Path) -> None:
    file = folder / "tokenizer.json"
    text = file.read_text()
    assert '"a"' in text and '"b"' in text
    file.write_text(text.replace('"a"', '"\0"').replace('"b"', '"a"').replace('"\0"', '"b"'))


def test_a_wrong_key_and_a_wrong_address(
    two: list[Served], folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(samplers.SERVER_KEY, "guess")
    with pytest.raises(
        ValueError, match=r"cannot be used: .*401.*set ASCENT_SERVER_KEY to its key"
    ) as error:
        fleet(two, folders, tmp_path)
    assert "guess" not in str(error.value)
    monkeypatch.setenv(samplers.SERVER_KEY, KEY)
    stopped(two[1])
    with pytest.raises(ValueError, match=r"cannot be used: .*Connection refused"):
        fleet(two, folders, tmp_path)
