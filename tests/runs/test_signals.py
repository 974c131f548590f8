"""Real signals to a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ascent.runs.signals import GracefulStop

ROOT = Path(__file__).parents[2]
LOOP = """
import time
from ascent.runs.signals import GracefulStop
with GracefulStop() as stop:
    print("ready", flush=True)
    while not stop.requested:
        time.sleep(0.01)
    print("saving after", stop.received, flush=True)
    {tail}
print("left", flush=True)
"""


def run(tail: str, *signals: signal.Signals) -> tuple[int, str, str]:
    child = subprocess.Popen(
        [sys.executable, "-c", LOOP.format(tail=tail)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    said = child.stdout.readline()
    for each in signals:
        child.send_signal(each)
        if each is not signals[-1]:
            said += child.stdout.readline()
    out, err = child.communicate(timeout=20)
    return child.returncode, said + out, err


@pytest.mark.parametrize("each", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_finishes_and_exits_cleanly(each: signal.Signals) -> None:
    status, out, err = run("pass", each)
    assert (status, out) == (0, f"ready\nsaving after {each.name}\nleft\n")
    assert (
        f"{each.name}: finishing this step, saving, then exiting; send it again to exit now" in err
    )


def test_the_second_signal_exits_at_once() -> None:
    status, out, err = run("time.sleep(60)", signal.SIGTERM, signal.SIGINT)
    assert status == 128 + signal.SIGINT
    assert "left" not in out
    assert "SIGINT again: exiting now, without saving" in err


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    with GracefulStop() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested and stop.received == "SIGTERM"
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


def test_outside_the_main_thread_it_says_that_it_cannot_watch(
    capfd: pytest.CaptureFixture[str],
) -> None:
    seen: list[bool] = []

    def work() -> None:
        with GracefulStop() as stop:
            seen.append(stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
    assert "signals are not handled" in capfd.readouterr().err
