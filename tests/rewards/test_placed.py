"""Rewards that workers call: the outcomes of rewards in this process, whatever fails; a dead worker loses nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ascent import progress
from ascent.http_server import Server
from ascent.records import Completion, Episode, Message, Prompt, Rollout, Turn
from ascent.rewards import placed
from ascent.rewards.calls import score_all
from ascent.rewards.outcome import RewardFailed
from ascent.rewards.placed import PlacedReward, RewardWorkers
from ascent.rewards.registry import Reward, find
from ascent.rewards.worker import create_worker
from tests.wall_clock import wall_clock

KEY = "a-key"
ZOO = """
import time
from ascent.records import StepReward
from ascent.rewards import Unscored, batched

def number(rollout, *, scale=1.0):
    return scale / 3 * len(rollout.text)

def parts(rollout):
    return {"length": len(rollout.text), "unknown": None, "sample": rollout.sample}

def steps(rollout):
    return [StepReward(token, 0.1 * token) for token in range(rollout.length)]

def failing(rollout):
    if rollout.sample == 1:
        raise KeyError(rollout.prompt.info["level"])
    if rollout.sample == 2:
        raise Unscored("no_gold", "there is none")
    return {3: None, 4: float("nan"), 5: "much"}.get(rollout.sample, 1)

def hanging(rollout):
    if rollout.sample == 2:
        time.sleep(20)
    return rollout.sample

async def awaited(rollout):
    return rollout.sample / 7

@batched
def ranked(rollouts):
    order = sorted(rollouts, key=lambda each: len(each.text))
    return [order.index(each) / len(order) for each in rollouts]

@batched
def short(rollouts):
    return [1.0]

def trl(prompts, completions, level, **columns):
    return [len(each) + each_level for each, each_level in zip(completions, level)]

def verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(len(solution_str)), "beside": 1.0}

def everything(rollout):
    turn, prompt = rollout.turns[0], rollout.prompt
    seen = (prompt, dict(prompt.columns), turn, rollout.episode, rollout.sample)
    return {repr(seen): 1.0}
"""
# Those whose failures end a run are called with on_error=never, which counts them.
NAMES = (
    "number",
    "parts",
    "steps",
    "failing",
    "awaited",
    "ranked",
    "short",
    "trl",
    "verl",
    "everything",
)


def rollout(sample: int, **more: Any) -> Rollout:
    tokens = tuple(range(3, 5 + sample))
    done = Completion(
        "p",
        sample,
        tokens,
        (-0.1,) * (len(tokens) - 1) + (float("nan"),),
        (4,) * len(tokens),
        "eos",
    )
    columns = {"level": 7 + sample, "nested": {"a": [1, 2.5, None, True]}, **more}
    prompt = Prompt(
        "p",
        (Message("user", "say"), Message("assistant", "", '{"tool_calls": []}')),
        "42",
        {"level": 1},
        columns,
    )
    turn = Turn((1, 2), done, "wörds " * sample, "a reply", "tool")
    return Rollout(prompt, sample, (turn,), episode=Episode("over", {"won": 1.0}, {"calls": 2}))


ROLLOUTS = [rollout(each) for each in range(8)]


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    (tmp_path / "zoo.py").write_text(ZOO)
    return tmp_path / "zoo.py"


def found(zoo: Path) -> dict[str, Reward]:
    return {
        name: find(f"{zoo}:{name}", **({"scale": 2.0} if name == "number" else {}))
        for name in NAMES
    }


@contextmanager
def serving(rewards: dict[str, Reward], port: int = 0) -> Iterator[Server]:
    server = create_worker(rewards, port=port, token=KEY)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def workers_of(
    urls: Callable[[], Sequence[str]], error: Callable[[], str] = str, **more: Any
) -> Iterator[RewardWorkers]:
    workers = RewardWorkers(lambda: (urls(), error()), lambda: None, key=KEY, count=2, **more)
    try:
        yield workers
    finally:
        workers.close()


@contextmanager
def two_workers(zoo: Path, rewards: dict[str, Reward] | None = None) -> Iterator[RewardWorkers]:
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(rewards or found(zoo))) for _ in range(2)]
        yield stack.enter_context(workers_of(lambda: [f"{each.url}/v1" for each in servers]))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed, "REFRESH_SECONDS", 0.02)
    monkeypatch.setattr(placed, "PAUSE_SECONDS", 0.05)


def test_outcomes_are_those_of_this_process(zoo: Path) -> None:
    local = found(zoo)
    expected = score_all(local, ROLLOUTS, timeout=60.0, on_error="never")
    kinds = {
        each.failure.kind for one in expected for each in one.values() if each.failure is not None
    }
    assert kinds == {"raised", "no_gold", "none", "nan", "wrong_type", "wrong_count"}
    with two_workers(zoo) as workers:
        spread = {name: PlacedReward(name, each, workers) for name, each in local.items()}
        assert score_all(spread, ROLLOUTS, timeout=60.0, on_error="never") == expected


@wall_clock
def test_a_timeout_reads_as_in_this_process(zoo: Path) -> None:
    local = find(f"{zoo}:hanging")
    expected = score_all({"r": local}, ROLLOUTS, timeout=1.0, on_error="never")
    assert [each["r"].failure is not None for each in expected] == [n == 2 for n in range(8)]
    with two_workers(zoo, {"r": local}) as workers:
        assert (
            score_all(
                {"r": PlacedReward("r", local, workers)}, ROLLOUTS, timeout=1.0, on_error="never"
            )
            == expected
        )


def test_a_worker_that_dies_loses_nothing(zoo: Path) -> None:
    (zoo.parent / "slow.py").write_text(
        "import time\ndef slow(rollout):\n    time.sleep(0.1)\n    return rollout.sample\n"
    )
    reward = {"slow": find(f"{zoo.parent}/slow.py:slow")}
    with ExitStack() as stack:
        one, two = (stack.enter_context(serving(reward)) for _ in range(2))
        dead = stack.enter_context(serving(reward))
        dead.shutdown()
        dead.server_close()  # it is listed and refuses connections
        with workers_of(lambda: [f"{each.url}/v1" for each in (one, dead, two)]) as workers:
            spread = {"slow": PlacedReward("slow", reward["slow"], workers)}
            outcomes = score_all(spread, ROLLOUTS, timeout=30.0)
    assert [each["slow"].parts for each in outcomes] == [{"": float(n)} for n in range(8)]


def test_calls_of_a_machine_that_is_gone_are_made_again(zoo: Path) -> None:
    """It took the call and is silent; once it is not listed any more, another makes it."""
    begun, released = threading.Event(), threading.Event()

    def stuck(rollout: Rollout) -> float:
        begun.set()
        released.wait(60)
        return -1.0

    with serving({"r": stuck}) as silent, serving({"r": lambda rollout: 1.0}) as other:
        urls = [f"{silent.url}/v1"]

        def replace() -> None:
            begun.wait(60)
            urls[:] = [f"{other.url}/v1"]

        threading.Thread(target=replace, daemon=True).start()
        with workers_of(lambda: list(urls)) as workers:
            (outcome,) = workers.call("r", ROLLOUTS[:1], 600.0, 1)
        released.set()
    assert outcome.parts == {"": 1.0}


def test_a_call_that_ends_its_workers_is_at_fault() -> None:
    at_fault = "reward r on prompt 'p', sample 3: 5 reward workers failed with it, at last http"
    urls = [f"http://127.0.0.1:{port}/v1" for port in range(1, 6)]
    with workers_of(lambda: urls) as workers, pytest.raises(RewardFailed, match=at_fault):
        workers.call("r", [ROLLOUTS[3]], 5.0, 1)


def test_a_launcher_that_gave_up_ends_it_and_waiting_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "FIRST_NOTE", 0.0)
    said: list[str] = []
    problem: list[str] = []

    def listen(text: str) -> None:
        said.append(text)
        problem[:] = ["5 reward workers in a row did not start"]

    given_up = pytest.raises(RewardFailed, match="5 reward workers in a row did not start")
    with (
        workers_of(lambda: [], lambda: "".join(problem)) as workers,
        progress.notes_to(listen),
        given_up,
    ):
        workers.call("r", ROLLOUTS, 5.0, 1)
    assert re.fullmatch(
        r"no reward worker for 0 s, since [0-9:]+: none answers yet, as .*", said[0]
    )
    never = pytest.raises(RewardFailed, match=r"reward r: no reward worker for 0.1 s")
    with workers_of(lambda: [], patience=0.1) as workers, never:
        workers.call("r", ROLLOUTS, 5.0, 1)


def test_a_rank_that_cannot_ask_for_workers_asks_again(zoo: Path) -> None:
    """Nobody waits for workers that nobody asked for."""
    refused = [OSError("the disk is full")]

    def want() -> None:
        if refused:
            raise refused.pop()

    with serving({"r": lambda rollout: 1.0}) as server:
        workers = RewardWorkers(
            lambda: ([f"{server.url}/v1"], ""), want, key=KEY, count=1, patience=60.0
        )
        with pytest.raises(OSError, match="the disk is full"):
            workers.call("r", ROLLOUTS[:1], 5.0, 1)
        (outcome,) = workers.call("r", ROLLOUTS[:1], 5.0, 1)
        workers.close()
    assert outcome.parts == {"": 1.0}


def test_a_busy_worker_is_asked_again() -> None:
    """Two ranks ask one worker: no more calls run at once than in one process."""
    running, most, lock = [0], [0], threading.Lock()

    def counted(rollout: Rollout) -> float:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        threading.Event().wait(0.05)
        with lock:
            running[0] -= 1
        return 1.0

    with serving({"r": counted}) as server, ExitStack() as stack:
        ranks = [stack.enter_context(workers_of(lambda: [f"{server.url}/v1"])) for _ in range(2)]
        threads = [
            threading.Thread(
                target=score_all,
                args=({"r": PlacedReward("r", counted, each)}, ROLLOUTS),
                kwargs={"timeout": 30.0},
            )
            for each in ranks
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert 1 <= most[0] <= 4


@pytest.mark.parametrize("data", [{"a": (1, 2)}, {1: "one"}, {"a": {1, 2}}, {"a": b"bytes"}])
def test_data_that_json_would_change_is_refused(data: dict[Any, Any]) -> None:
    with (
        workers_of(lambda: []) as workers,
        pytest.raises(ValueError, match=r"prompt 'p': columns cannot be sent to a"),
    ):
        workers.call("r", [rollout(0, **{"data": data})], 5.0, 1)


def test_the_process_finds_its_rewards_in_a_file_and_ends_when_told(zoo: Path) -> None:
    listed = {"name": {"use": "zoo.py:number", "options": {"scale": 2.0}}}
    (zoo.parent / "wanted.json").write_text(json.dumps({"launch": "x", "rewards": listed}))
    (zoo.parent / "key").write_text(KEY)
    process = subprocess.Popen(
        [sys.executable, "-m", "ascent.rewards.worker", "wanted.json", "--token-file", "key"],
        cwd=zoo.parent,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        line = re.fullmatch(
            r"rewards name at (http://127\.0\.0\.1:\d+)\n", process.stdout.readline()
        )
        assert line is not None
        with workers_of(lambda: [f"{line[1]}/v1"]) as workers:
            (outcome,) = workers.call("name", ROLLOUTS[1:2], 30.0, 1)
        assert outcome.parts == {"": 2.0 / 3 * 6}
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.stdout.close()  # type: ignore[union-attr]
