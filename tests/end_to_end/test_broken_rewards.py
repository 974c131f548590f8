"""A reward server that is killed, slow, broken or lies, inside a training run: it goes on or stops, and says why.

What could not be scored is counted to the rollout, is never a wrong answer, and is not trained on.
"""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascent.api.train import train_plan
from ascent.config.load import nest_keys
from ascent.config.validate import validate
from ascent.plan.resolve import resolve
from ascent.rewards.outcome import RewardFailed
from ascent.runs.folder import Run, read_run
from tests.rewards.servers import misbehaving

PIECE = 4  # rollouts in a request; a step has two of them


def honest(body: dict[str, Any]) -> tuple[int, bytes]:
    """1 for an even number of tokens: about half of an untrained policy's."""
    return 200, json.dumps(
        {"scores": [float(each["tokens"] % 2 == 0) for each in body["rollouts"]]}
    ).encode()


def slow(body: dict[str, Any]) -> tuple[int, bytes]:
    time.sleep(2)
    return honest(body)


FAULTS: dict[str, Callable[[dict[str, Any]], tuple[int, bytes]]] = {
    "server_timeout": slow,
    "server_error": lambda body: (500, b"boom"),
    "bad_reply": lambda body: (200, b"<html>no</html>"),
    "server_refused": lambda body: (403, b"go away"),
    "server_cannot_say": lambda body: (
        200,
        json.dumps({"scores": [None] * len(body["rollouts"])}).encode(),
    ),
}


def run(folder: Path, url: str, steps: int = 3, **reward: Any) -> Run:
    retry = {"timeout": 0.5, "tries": 1, "trip": 1000, "rest": 0.0}
    settings = {
        "algorithm": "grpo",
        "model.policy": "tiny:llama",
        "data.train": "sort_digits:8",
        "rollouts.group_size": 4,
        "rollouts.prompts_per_step": 2,
        "rollouts.max_new_tokens": 5,
        "run.steps": steps,
        "run.save_every": steps,
        "rewards": [
            {"use": "remote", "url": url, "batch": PIECE, "at_once": 1, "retry": retry, **reward}
        ],
    }
    train_plan(resolve(validate(nest_keys(settings))), folder, say=lambda line: None)
    return read_run(folder)


def unscored(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith("reward/failures/")}


@pytest.mark.parametrize("kind", FAULTS)
def test_half_of_a_step_fails_and_the_run_goes_on(kind: str, tmp_path: Path) -> None:
    """The third request of the run fails: one of the two in step 2."""
    lock, asked = threading.Lock(), [0]

    def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        with lock:
            asked[0] += 1
            number = asked[0]
        return FAULTS[kind](body) if number == 3 else honest(body)

    with misbehaving(answer) as server:
        done = run(tmp_path / "run", server.url)
    assert done.state == "finished"
    assert [unscored(line) for line in done.metrics] == [
        {},
        {f"reward/failures/remote/{kind}": PIECE},
        {},
    ]
    assert [line["reward/failure_frac"] for line in done.metrics] == [0, 0.5, 0]
    lost = [each for each in done.samples if each["reward"] is None]
    assert len(lost) == PIECE and {each["step"] for each in lost} == {2}
    assert (
        done.metrics[1]["reward/mean"]
        == sum(e["reward"] for e in done.samples if e["step"] == 2 and e not in lost) / PIECE
    )


def test_a_reply_of_the_wrong_length_scores_nobody_of_its_request(tmp_path: Path) -> None:
    asked = [0]

    def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        asked[0] += 1
        return (200, b'{"scores": [1.0, 1.0, 1.0]}') if asked[0] == 3 else honest(body)

    with misbehaving(answer) as server:
        done = run(tmp_path / "run", server.url)
    assert [unscored(line) for line in done.metrics] == [
        {},
        {"reward/failures/remote/bad_reply": PIECE},
        {},
    ]


@pytest.mark.parametrize("policy", ["bugs", "failures", "never"])
def test_a_server_killed_in_the_middle_of_a_run(policy: str, tmp_path: Path) -> None:
    """It answers the two requests of step 1 and is gone. By policy the run stops at once, or goes on and counts."""
    with misbehaving(lambda path, body: honest(body)) as server:
        asked = [0]

        def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
            asked[0] += 1
            server.cut = asked[0] > 2  # from here on connections break without a word
            return honest(body)

        server.answer = answer
        if policy == "never":
            done = run(tmp_path / "run", server.url, on_error=policy)
            assert done.state == "finished"
            down = {"reward/failures/remote/server_down": 2 * PIECE}
            assert [unscored(line) for line in done.metrics] == [{}, down, down]
            assert [line["optim/updates"] for line in done.metrics][1:] == [
                0,
                0,
            ]  # nothing was learnt from silence
        else:
            words = (
                "8 of 8 rollouts could not be scored"
                if policy == "bugs"
                else "sample 0: server_down"
            )
            with pytest.raises(RewardFailed, match=words):
                run(tmp_path / "run", server.url, on_error=policy)
            done = read_run(tmp_path / "run")
            assert done.state == "failed" and len(done.metrics) == 1


def holding(folder: Path, secret: str) -> list[str]:
    return [
        str(file)
        for file in folder.rglob("*")
        if file.is_file() and secret.encode() in file.read_bytes()
    ]


@pytest.mark.parametrize("status", [200, 401, 500])
def test_a_token_that_the_server_repeats_is_in_no_file_of_the_run(
    status: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "t0ken-for-nobody"
    (tmp_path / "token").write_text(secret)
    with misbehaving(lambda path, body: (status, b"I know your " + secret.encode())) as server:
        run(
            tmp_path / "run",
            server.url,
            steps=1,
            on_error="never",
            token_file=str(tmp_path / "token"),
        )
        assert {token for _, _, token in server.requests} == {f"Bearer {secret}"}
        with pytest.raises(RewardFailed) as error:
            run(
                tmp_path / "stopped",
                server.url,
                steps=1,
                on_error="failures",
                token_file=str(tmp_path / "token"),
            )
    assert holding(tmp_path / "run", server.url) and not holding(tmp_path / "run", secret)
    assert not holding(tmp_path / "stopped", secret)
    shown = capfd.readouterr()
    assert secret not in shown.out + shown.err + "".join(traceback.format_exception(error.value))


def test_a_password_in_a_url_reaches_no_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = "http://me:hunter2@127.0.0.1:9"  # on a line of its own, which tracebacks do not quote
    with pytest.raises(
        ValueError, match=r"^rewards\[0\]: the url holds an @, so a user or a password"
    ) as error:
        run(tmp_path / "run", url, steps=1)
    assert not holding(tmp_path, "hunter2")
    shown = capfd.readouterr()
    assert "hunter2" not in shown.out + shown.err + "".join(traceback.format_exception(error.value))


def test_a_judge_that_is_down_never_looks_like_a_wrong_answer(tmp_path: Path) -> None:
    """Half of the calls find nobody: those rollouts have no reward, and the mean is over the others alone."""
    lock, asked = threading.Lock(), [0]

    def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        with lock:
            asked[0] += 1
            number = asked[0]
        if number % 2:
            return 503, b"down"
        score = 10 if number % 4 else 5
        return 200, json.dumps({"choices": [{"message": {"content": f"Score: {score}"}}]}).encode()

    judge = {"use": "judge", "model": "m", "rubric": "be right", "at_once": 1}
    retry = {"timeout": 5.0, "tries": 1, "trip": 1000, "rest": 0.0}
    with misbehaving(answer) as server:
        settings = {
            "algorithm": "grpo",
            "model.policy": "tiny:llama",
            "data.train": "sort_digits:8",
            "run.steps": 2,
            "rollouts.group_size": 4,
            "rollouts.prompts_per_step": 2,
            "rollouts.max_new_tokens": 5,
            "run.save_every": 2,
            "rewards": [{**judge, "url": server.url, "retry": retry}],
        }
        train_plan(resolve(validate(nest_keys(settings))), tmp_path / "run", say=lambda line: None)
    done = read_run(tmp_path / "run")
    for line in done.metrics:
        assert unscored(line) == {"reward/failures/judge/server_error": 4}
        assert (
            line["reward/mean"] == 0.75
        )  # two 1.0 and two .5; with zeros for the silence it would be .375
    assert sorted({each["reward"] for each in done.samples if each["reward"] is not None}) == [
        0.5,
        1.0,
    ]
