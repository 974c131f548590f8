"""`ascent serve-reward` as a process of its own, killed in the middle of a run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ascent.build.training import train
from ascent.cli.main import app
from ascent.rewards import find
from ascent.rewards.calls import score_all
from ascent.rewards.outcome import Tally
from tests.build.runs import tiny_plan
from tests.rewards.rollouts import rollout


@pytest.mark.slow
def test_killed_in_the_middle_of_a_run(tmp_path: Path) -> None:
    run, token = tmp_path / "rm", tmp_path / "token"
    train(tiny_plan(algorithm="reward_model", run={"steps": 1}), run, say=lambda text: None)
    token.write_text("a-token")
    words = [sys.executable, "-m", "ascent", "serve-reward", str(run), "--port", "0", "--token-file", str(token)]
    serving = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert serving.stdout is not None
    found = re.search(r"at (http://127\.0\.0\.1:\d+)", serving.stdout.readline())
    assert found is not None
    patience = {"timeout": 20, "tries": 2, "pause": 0.01}
    reward = find("remote", url=found[1], token_file=str(token), batch=2, patience=patience)
    reward.check()  # type: ignore[union-attr]
    tally, five = Tally(), [rollout("3", sample=n) for n in range(5)]
    score_all({"model": reward}, five, timeout=60, tally=tally)
    assert tally.counters() == {"rewards/model/scored": 5}
    serving.send_signal(signal.SIGKILL)
    serving.wait()
    serving.stdout.close()
    score_all({"model": reward}, five, timeout=60, tally=tally)
    assert tally.counters() == {"rewards/model/scored": 5, "rewards/model/unscored/server_down": 5}


def test_other_machines_need_a_token(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["serve-reward", "nowhere", "--token-file", str(tmp_path / "none")])
    assert isinstance(done.exception, ValueError) and "there is no such file" in str(done.exception)
