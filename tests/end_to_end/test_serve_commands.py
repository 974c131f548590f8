"""`ascent serve` as a process: the commands that sample take its URL, and say what they say without it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from ascent.cli.main import app
from ascent.data.render import Renderer
from ascent.engines.native.engine import NativeEngine
from ascent.engines.remote import RemoteSampler
from ascent.engines.weight_updates import AscentUpdates
from ascent.http_client import RetryPolicy
from ascent.models.load import load
from ascent.models.lora import attach
from ascent.records import Request
from ascent.setup.policy_weights import write_adapter
from tests.engines.served import tiny_folder


@pytest.fixture(scope="module")
def served_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("served")
    model = tiny_folder(folder / "model")
    (folder / "key").write_text("a-key")
    words = [
        sys.executable,
        "-m",
        "ascent",
        "serve",
        str(model),
        "--port",
        "0",
        "--token-file",
        str(folder / "key"),
    ]
    # As without the extra qlora: bitsandbytes imports what peft reads, and would hide that peft does not.
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['bitsandbytes'] = None\n")
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": path,
    }
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        found = re.search(r"at (http://127\.0\.0\.1:\d+/v1)", process.stdout.readline())
        assert found is not None
        yield found[1], model
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stdout is not None
        process.stdout.close()


COMMANDS = {
    "sample": "sample {model} 1+1= --samples 3 --max-new-tokens 6",
    "evaluate": "evaluate {model} arithmetic --limit 4 --samples 2 --max-new-tokens 6 --out {out}",
    "collect": "collect {model} arithmetic:4 --out {out} --judge {judge} --max-new-tokens 6 --repeat 0",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_the_url_of_a_server(
    command: str, served_url: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, model = served_url
    monkeypatch.setenv("ASCENT_SERVER_KEY", "a-key")
    (tmp_path / "judge.py").write_text(
        "def brief(rollout):\n    return -float(len(rollout.text))\n"
    )
    said, written = [], []
    for name, engine in (("here", "native"), ("there", url)):
        out = tmp_path / f"{name}.jsonl"
        words = (
            COMMANDS[command]
            .format(model=model, out=out, judge=tmp_path / "judge.py:brief")
            .split()
        )
        result = CliRunner().invoke(app, [*words, "--engine", engine])
        assert result.exit_code == 0, result.output
        said.append(result.output.replace(str(out), "OUT"))
        written.append(re.sub(r'"time": ?[^,}]+', "", out.read_text()) if out.exists() else "")
    assert said[0] == said[1] and written[0] == written[1]
    assert command == "sample" or written[0]


def test_the_server_attaches_an_adapter(served_url: tuple[str, Path], tmp_path: Path) -> None:
    """The command shortens its imports, so peft misses a module of torch that it reads and does not import."""
    url, model = served_url
    policy = attach(load(model), rank=4)
    with torch.no_grad():
        for name, weight in policy.adapter.named_parameters():
            if "lora_B" in name:  # it starts at 0, where an adapter that is missing changes nothing
                weight.add_(0.1)
    write_adapter(policy, str(model), tmp_path / "adapter")
    stop_ids = Renderer(policy.tokenizer).stop_ids
    request = Request("p", 0, (5, 6, 7), 12, seed=0, greedy=True)
    retry = RetryPolicy(timeout=60.0, tries=1)
    sampler = RemoteSampler(url, "model", stop_ids, key="a-key", retry=retry, exact=True)
    updates = AscentUpdates(url, "a-key", retry)
    sampler.model = updates.check().name
    (plain,) = NativeEngine(load(model), stop_ids).sample([request])
    (expected,) = NativeEngine(policy, stop_ids).sample([request])
    assert expected.logprobs != plain.logprobs
    try:
        updates.push(1, tmp_path / "adapter")
        (found,) = sampler.sample([request])
    finally:
        updates.push(2, model)
    assert (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)
    (again,) = sampler.sample([request])
    assert (again.tokens, again.logprobs) == (plain.tokens, plain.logprobs)


def test_a_server_that_does_not_start_leaves_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_folder(tmp_path / "model", seed=1)
    (model / "config.json").write_text('{"model_type": "none"}')
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    words = f"evaluate {model} arithmetic --limit 1 --max-new-tokens 2 --engine remote".split()
    result = CliRunner().invoke(app, words)
    (log,) = (tmp_path / "temporary").glob("ascent-*/*")  # and no key
    assert f"{log} ends with" in str(result.exception) and "none" in log.read_text()


def test_compare_starts_a_server_for_each_model_and_refuses_urls(
    served_url: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, model = served_url
    other, said = tiny_folder(tmp_path / "other", seed=1), []
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "judge.py").write_text(
        "def brief(rollout):\n    return -float(len(rollout.text))\n"
    )
    words = f"compare {model} {other} arithmetic --judge {tmp_path}/judge.py:brief --limit 4 --max-new-tokens 6".split()
    for engine in ("native", "remote"):
        result = CliRunner().invoke(app, [*words, "--engine", engine])
        assert result.exit_code == 0, result.output
        said.append(result.stdout)  # a slow start is told on standard error
    assert said[0] == said[1]
    assert not list((tmp_path / "temporary").glob("ascent-*"))  # neither keys nor logs are left
    result = CliRunner().invoke(app, [*words, "--engine", url])
    assert "names servers of one model, but there are 2" in str(result.exception)
