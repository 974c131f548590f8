"""`ascent serve-reward` as a process of its own, killed in the middle of a run."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ascent.api.train import train_plan
from ascent.rewards import find
from ascent.rewards.calls import score_all
from ascent.rewards.outcome import Tally
from tests.rewards.rollouts import rollout
from tests.rewards.tallies import counters
from tests.setup.runs import tiny_plan


def test_killed_in_the_middle_of_a_run(tmp_path: Path) -> None:
    run, token = tmp_path / "rm", tmp_path / "token"
    train_plan(tiny_plan(algorithm="reward_model", run={"steps": 1}), run, say=lambda text: None)
    token.write_text("a-token")
    words = [
        sys.executable,
        "-m",
        "ascent",
        "serve-reward",
        str(run),
        "--port",
        "0",
        "--token-file",
        str(token),
    ]
    serving = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert serving.stdout is not None
    found = re.search(r"at (http://127\.0\.0\.1:\d+)", serving.stdout.readline())
    assert found is not None
    retry = {"timeout": 20, "tries": 2, "pause": 0.01}
    reward = find("remote", url=found[1], token_file=str(token), batch=2, retry=retry)
    reward.check_server()  # type: ignore[union-attr]
    tally, five = Tally(), [rollout("3", sample=n) for n in range(5)]
    score_all({"model": reward}, five, timeout=60, tally=tally)
    assert counters(tally) == {"rewards/model/scored": 5}
    serving.send_signal(signal.SIGKILL)
    serving.wait()
    serving.stdout.close()
    score_all({"model": reward}, five, timeout=60, tally=tally)
    assert counters(tally) == {"rewards/model/scored": 5, "rewards/model/unscored/server_down": 5}


def refused(*words: str) -> str:
    """The one line of a command that ends with status 2."""
    command = [sys.executable, "-m", "ascent", "serve-reward", "nowhere", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("ascent: ") and not done.stdout
    return line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--port", "99999"],
            "port=99999, but a port lies between 0 and 65535; 0 takes a free one",
        ),
        (["--port", "-1"], "port=-1, but a port lies between 0 and 65535"),
        (["--host", "0.0.0.0"], "host=0.0.0.0 is open to other machines, so a token is needed"),
        (
            ["--host", "192.0.2.1", "--token-file", "TOKEN"],
            "host=192.0.2.1, port=8765 cannot be listened on: ",
        ),
        (
            ["--host", "\u00fc" * 80, "--token-file", "TOKEN"],
            "cannot be listened on: not a host name",
        ),
        (["--token-file", "none"], "token_file=none: there is no such file"),
        (["--token-file", "."], "token_file=.: there is no such file"),
        (["--token-file", "BINARY"], "must be one word of ASCII letters"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line_before_the_model_is_loaded(
    words: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("a-token")
    (tmp_path / "binary").write_bytes(b"\xff\xfes3cret")
    files = {"TOKEN": str(tmp_path / "token"), "BINARY": str(tmp_path / "binary")}
    line = refused(*(files.get(word, word) for word in words))
    assert message in line and "s3cret" not in line


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert (
            f"host=127.0.0.1, port={port} cannot be listened on: Address already in use"
            in refused("--port", str(port))
        )
