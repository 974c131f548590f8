"""Runs by recipe whose rollouts come from servers: the bits of the run in one process, and no process left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import ascent
from ascent.engines.remote import RemoteError
from tests.end_to_end.test_overlap import quiet, recipe, run
from tests.engines.served import KEY, Served, served, tiny_folder
from tests.setup.runs import weights_of


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCENT_SERVER_KEY", KEY)


def test_two_servers_give_the_weights_of_the_run_in_one_process(tmp_path: Path) -> None:
    more = {"data.evaluate": "arithmetic@heldout:4", "run.evaluate_every": 2}
    expected, local = run(tmp_path, "native", **more)
    with (
        served(tiny_folder(tmp_path / "served", seed=7)) as one,
        served(tmp_path / "served") as two,
    ):
        servers = {"rollouts.engine": "remote", "rollouts.servers": [one.url, two.url]}
        found, remote = run(tmp_path, "remote", **more, **servers)
        assert found == expected
        assert [each["reward/mean"] for each in remote] == [each["reward/mean"] for each in local]
        assert {each["sampler/logprob_diff_max"] for each in remote} == {0.0}
        assert [each.server._engine.version for each in (one, two)] == [4, 4]
        assert not (tmp_path / "remote" / "weights").exists()
        # A run that was cut goes on with servers that know nothing of it.
        stop = lambda step, metrics: step == 2  # noqa: E731
        ascent.train(
            recipe(tmp_path, **more, **servers),
            run=tmp_path / "cut",
            callbacks=[stop],
            progress=False,
            say=print,
        )
        for each in (one, two):
            each.restart()
        ascent.resume(tmp_path / "cut", progress=False, say=print)
        assert weights_of(tmp_path / "cut", 4) == expected


DAPO: dict[str, Any] = {
    "algorithm": "dapo",
    "rollouts.group_size": 2,
    "update.minibatches": 2,
    "cells.reward_shaping.soft_overlong.max_length": 8,
    "cells.reward_shaping.soft_overlong.cache": 2,
}
RECIPES: dict[str, dict[str, Any]] = {
    "LoRA": {"model.lora": 4, "update.learning_rate": 1e-2},
    "LoRA in groups of 8": {
        "model.lora": 4,
        "rollouts.group_size": 8,
        "rollouts.prompts_per_step": 2,
    },
    "refills": DAPO,
    "refills with LoRA": {**DAPO, "model.lora": 4},
}


@pytest.mark.parametrize("name", RECIPES)
def test_log_probs_are_the_trainers_and_tokens_those_of_the_engine_in_process(
    name: str, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    expected, local = run(tmp_path, "native", **RECIPES[name])
    with (
        served(tiny_folder(tmp_path / "served", seed=7)) as one,
        served(tmp_path / "served") as two,
    ):
        servers = {"rollouts.engine": "remote", "rollouts.servers": [one.url, two.url]}
        found, remote = run(tmp_path, "remote", **RECIPES[name], **servers)
        if "LoRA" in name:  # unmerged, as it is trained
            assert all(each.server.model.adapter is not None for each in (one, two))
    assert found == expected
    assert {each["sampler/logprob_diff_max"] for each in remote} == {0.0}
    assert sampled(tmp_path / "remote") == sampled(tmp_path / "native")
    tries = [each.get("sampler/dynamic_sampling_tries", 0) for each in local]
    assert "refills" not in name or max(tries) > 1


def test_a_merged_adapter_is_said_to_differ(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    with served(tiny_folder(tmp_path / "served", seed=7)) as one:
        servers = {
            "rollouts.engine": "remote",
            "rollouts.servers": [one.url],
            "rollouts.lora_sync": "merged",
        }
        lines: list[str] = []
        keys = recipe(tmp_path, **servers, **{"model.lora": 4, "run.steps": 2})
        done = ascent.train(keys, run=tmp_path / "run", progress=False, say=lines.append)
        assert one.server.model.adapter is None
    assert "log-probs of the sampling policy: computed again by the trainer" in lines
    assert 0 < max(each.get("sampler/logprob_diff_max", 0) for each in done.metrics) < 1e-4


def test_weights_deleted_in_mid_run_are_written_again_or_said(tmp_path: Path) -> None:
    expected, _ = run(tmp_path, "native")
    with served(tiny_folder(tmp_path / "served", seed=7)) as one:
        servers = {"rollouts.engine": "remote", "rollouts.servers": [one.url]}

        def delete(step: int, metrics: Any) -> bool:
            """After step 1 alone, after step 2 with a restart, which needs them."""
            shutil.rmtree(tmp_path / "remote" / "weights")
            if step == 2:
                one.restart()
            return False

        with pytest.raises(RemoteError, match=r"/weights/\d+ was deleted while it was needed"):
            ascent.train(
                recipe(tmp_path, **servers),
                run=tmp_path / "remote",
                callbacks=[delete],
                progress=False,
                say=quiet,
            )
        ascent.resume(tmp_path / "remote", progress=False, say=quiet)
    assert weights_of(tmp_path / "remote", 4) == expected


def sampled(run: Path) -> list[Any]:
    """What the first rollouts of every step said."""
    rows = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    return [
        (row["step"], row["id"], row["sample"], row["tokens"], row["logprobs"], row["reward"])
        for row in rows
    ]


def test_a_server_restarted_in_every_step_changes_nothing(tmp_path: Path) -> None:
    expected, _ = run(tmp_path, "native")
    with (
        served(tiny_folder(tmp_path / "served", seed=7)) as one,
        served(tmp_path / "served") as two,
    ):
        restart = lambda step, metrics: bool(Served.restart((one, two)[step % 2]))  # noqa: E731
        more = recipe(
            tmp_path, **{"rollouts.engine": "remote", "rollouts.servers": [one.url, two.url]}
        )
        ascent.train(more, run=tmp_path / "remote", callbacks=[restart], progress=False, say=print)
    assert weights_of(tmp_path / "remote", 4) == expected


@pytest.mark.parametrize("how", ["finished", "killed"])
def test_a_server_started_for_the_run_ends_with_it(how: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "rollouts.engine": "remote",
        "run.steps": 4 if how == "finished" else 10000,
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(nested(recipe(tmp_path, **more))))
    command = [
        sys.executable,
        "-m",
        "ascent",
        "train",
        "recipe.yaml",
        "--run",
        "run",
        "--no-progress",
    ]
    trainer = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    try:
        if how == "killed":
            wait_for(lambda: (tmp_path / "run" / "checkpoints" / "2").exists(), 120)
            assert servers_of(tmp_path)
            os.kill(trainer.pid, signal.SIGKILL)
        trainer.wait(120)
    finally:
        trainer.kill()
        trainer.wait()
    wait_for(lambda: not servers_of(tmp_path), 30)
    assert "serving policy" in (tmp_path / "run" / "server.log").read_text()


def test_a_server_that_was_started_for_the_run_and_dies_is_started_again(tmp_path: Path) -> None:
    expected, _ = run(tmp_path, "native")

    def kill(step: int, metrics: Any) -> bool:
        if step == 2:
            (line,) = [each for each in servers_of(tmp_path, "pid,args") if "supervise" not in each]
            os.kill(int(line.split()[0]), signal.SIGKILL)
        return False

    keys = recipe(tmp_path, **{"rollouts.engine": "remote"})
    ascent.train(keys, run=tmp_path / "remote", callbacks=[kill], progress=False, say=quiet)
    assert weights_of(tmp_path / "remote", 4) == expected
    assert (tmp_path / "remote" / "server.log").read_text().count("serving policy") == 2
    assert not servers_of(tmp_path)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    short = {"model": "model.policy", "data": "data.train"}
    for key, value in flat.items():
        *sections, name = short.get(key, key).split(".")
        place = found
        for each in sections:
            place = place.setdefault(each, {})
        place[name] = value
    return found


def servers_of(folder: Path, columns: str = "args") -> list[str]:
    lines = subprocess.run(
        ["ps", "-ww", "-eo", columns], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [line for line in lines if str(folder) in line and " serve " in line]


def wait_for(condition: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.2)
