"""The launcher: torchrun's variables, exit statuses, signals. What it starts here are small programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ascent.parallel.launch import launch
from tests.wall_clock import wall_clock


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_every_rank_gets_torchruns_variables(tmp_path: Path) -> None:
    names = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "OMP_NUM_THREADS",
        "MASTER_PORT",
    )
    text = (
        "import os, pathlib\n"
        f"own = ' '.join(os.environ[name] for name in {names})\n"
        f"pathlib.Path({str(tmp_path)!r}, os.environ['RANK']).write_text(own)"
    )
    assert launch(program(text), 2, say=print) == 0
    first, second = (tmp_path.joinpath(str(rank)).read_text().split() for rank in (0, 1))
    assert first[:5] == ["0", "0", "2", "2", "127.0.0.1"] and second[:5] == [
        "1",
        "1",
        "2",
        "2",
        "127.0.0.1",
    ]
    assert first[-1] == second[-1] and int(first[-1]) > 1023


@wall_clock
def test_a_killed_rank_is_named_and_the_others_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascent.parallel.launch.GRACE_AFTER_KILL", 0.5)
    text = "import os, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\ntime.sleep(60)"
    said: list[str] = []
    began = time.monotonic()
    assert launch(program(text), 3, say=said.append) == 128 + signal.SIGKILL
    assert time.monotonic() - began < 20
    assert said == ["rank 1 was killed by SIGKILL; all ranks stop"]


def test_the_status_is_rank_0s_where_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascent.parallel.launch.GRACE", 5.0)
    text = "import os, sys, time\nif os.environ['RANK'] == '0': time.sleep(1); sys.exit(2)\nsys.exit(1)"
    assert launch(program(text), 2, say=print) == 2
    assert (
        launch(program("import os, sys; sys.exit(3 * int(os.environ['RANK']))"), 2, say=print) == 3
    )


def test_a_first_rank_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascent.parallel.launch.GRACE", 0.5)
    text = "import os, sys, time\nif os.environ['RANK'] == '0': time.sleep(60)\nsys.exit(4)"
    said: list[str] = []
    assert launch(program(text), 2, say=said.append) == 4
    assert said == ["rank 1 failed with exit status 4; all ranks stop"]


def test_signals_go_to_rank_0_once(tmp_path: Path) -> None:
    text = (
        "import os, pathlib, signal, sys, time\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "def stop(*_):\n    folder.joinpath('got' + os.environ['RANK']).touch(); sys.exit(0)\n"
        "signal.signal(signal.SIGINT, stop); folder.joinpath('up' + os.environ['RANK']).touch()\n"
        "end = time.time() + 60\n"
        "while time.time() < end and not folder.joinpath('got0').exists(): time.sleep(0.05)\n"
    )
    starter = (
        "from ascent.parallel.launch import launch; import sys; "
        f"sys.exit(launch({program(text)!r}, 2, say=print))"
    )
    process = subprocess.Popen(program(starter), start_new_session=True)
    while not all(tmp_path.joinpath(f"up{rank}").exists() for rank in (0, 1)):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C in a terminal
    assert process.wait(30) == 0
    assert tmp_path.joinpath("got0").exists() and not tmp_path.joinpath("got1").exists()


def test_wrong_calls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="processes=0; it must be at least 1"):
        launch(program(""), 0, say=print)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="either --processes or torchrun"):
        launch(program(""), 2, say=print)
