"""The processes that actors hold, without Ray: they start, report, get signals, and end with whoever started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ascent.engines import supervise
from ascent.runs.sampler_files import WantedServers
from ascent.scale.processes import RankProcess, SamplerServer, Status
from tests.end_to_end.test_remote_rollouts import wait_for
from tests.engines.served import tiny_folder


def ended(rank: RankProcess) -> Status:
    output = b""
    until = time.monotonic() + 60
    while (found := rank.status()).ended is None:
        output += found.output
        assert time.monotonic() < until, output
        time.sleep(0.05)
    return Status(found.node, None, found.ended, found.exit_status, output + found.output)


def test_a_rank_reports_its_output_and_status(tmp_path: Path) -> None:
    rank = RankProcess("127.0.0.1")
    host, port = rank.address()
    assert host == "127.0.0.1" and port > 0
    rank.start(["--version"], {}, str(tmp_path))
    found = ended(rank)
    assert found.exit_status == 0 and found.output.startswith(b"ascent ")
    rank.close()


def test_a_folder_that_is_not_on_the_node_is_said() -> None:
    with pytest.raises(
        ValueError, match=r"/nowhere is not on the node 127\.0\.0\.1; start the run from a folder"
    ):
        RankProcess("127.0.0.1").start(["--version"], {}, "/nowhere")


CHILD = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, lambda number, frame: (pathlib.Path("saved").touch(), sys.exit(7)))
pathlib.Path("child").write_text(str(__import__("os").getpid()))
time.sleep(600)
"""


def supervised(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """A supervisor whose parent is this process, and a child that saves on SIGINT."""
    process = subprocess.Popen(
        [
            sys.executable,
            supervise.__file__,
            *options,
            str(os.getpid()),
            sys.executable,
            "-c",
            CHILD,
        ],
        cwd=folder,
    )
    wait_for(lambda: (folder / "child").exists() and (folder / "child").read_text(), 60)
    return process


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_signals_are_passed_on_and_the_process_ends_when_it_likes(tmp_path: Path) -> None:
    process = supervised(tmp_path, "--forward")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 7 and (tmp_path / "saved").exists()


@pytest.mark.parametrize(
    ("options", "number"), [(["--forward"], signal.SIGHUP), ([], signal.SIGTERM)]
)
def test_the_signal_that_ends_it(options: list[str], number: int, tmp_path: Path) -> None:
    process = supervised(tmp_path, *options)
    process.send_signal(number)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert not is_running(int((tmp_path / "child").read_text()))


@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems have no signal for the death of a parent"
)
def test_a_killed_supervisor_takes_the_process_with_it(tmp_path: Path) -> None:
    process = supervised(tmp_path)
    process.kill()
    process.wait()
    wait_for(lambda: not is_running(int((tmp_path / "child").read_text())), 30)


def test_a_sampler_answers_and_its_death_is_known(tmp_path: Path) -> None:
    wanted = WantedServers(str(tiny_folder(tmp_path / "model")), "float32", 64)
    sampler = SamplerServer(wanted, "a-key", str(tmp_path / "log"), 1, "127.0.0.1")
    try:
        wait_for(lambda: sampler.status().url or sampler.status().ended, 120)
        assert sampler.status().url is not None, sampler.status()
        sampler._process._process.kill()  # the server ends with its supervisor
        wait_for(lambda: sampler.status().ended, 60)
        assert sampler.status().url is None
    finally:
        sampler.close()


def test_a_sampler_that_cannot_start_says_why(tmp_path: Path) -> None:
    sampler = SamplerServer(
        WantedServers(str(tmp_path / "nothing"), "float32", 64),
        "k",
        str(tmp_path / "log"),
        1,
        "127.0.0.1",
    )
    try:
        wait_for(lambda: sampler.status().ended, 120)
        assert "ends with" in str(sampler.status().ended) and "nothing" in str(
            sampler.status().ended
        )
    finally:
        sampler.close()
