"""Workers that are late or die are replaced; answers keep their order; nothing outlives whoever started it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ascent.sandbox.pool import Pool, WorkerDied, WorkerTimeout
from tests.sandbox.processes import alive, descendants
from tests.wall_clock import wall_clock

ECHO = """
import json, sys, time, os
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    if job == "hang": time.sleep(60)
    if job == "die": os._exit(3)
    if isinstance(job, float): time.sleep(job)
    print(json.dumps([job, os.getpid()]), flush=True)
"""


@pytest.fixture
def pool():
    with Pool(lambda slot: [sys.executable, "-c", ECHO], 2) as pool:
        yield pool


def test_order_and_reuse(pool):
    answers = pool.map([0.2, 0.0, "a", "b", "c"], 10)
    assert [answer[0] for answer in answers] == [0.2, 0.0, "a", "b", "c"]
    assert len({answer[1] for answer in answers}) <= 2


@wall_clock
def test_late_and_dead_workers_are_replaced(pool):
    start = time.monotonic()
    answers = pool.map(["hang", "die", "a", "b", "c", "d"], 1.0)
    assert (
        isinstance(answers[0], WorkerTimeout)
        and isinstance(answers[1], WorkerDied)
        and "status 3" in str(answers[1])
    )
    assert [answer[0] for answer in answers[2:]] == ["a", "b", "c", "d"]
    assert time.monotonic() - start < 10


def test_a_worker_that_does_not_start():
    with (
        Pool(lambda slot: [sys.executable, "-c", "print('{}')"], 1) as pool,
        pytest.raises(WorkerDied, match="did not start"),
    ):
        pool.ask("a", 1)


def test_closed_and_empty_pools():
    pool = Pool(lambda slot: ["true"], 1)
    assert pool.map([], 1) == []
    pool.close()
    with pytest.raises(ValueError, match="the pool is closed"):
        pool.ask("a", 1)
    with pytest.raises(ValueError, match="at least 1"):
        Pool(lambda slot: ["true"], 0)


@wall_clock
def test_workers_live_longer_than_the_threads_that_ask_them():
    """To the kernel a thread is a parent, and `signal_ready` asks to end with it; `map` has threads for each call."""
    echo = ECHO.replace(
        'print(json.dumps({"ready": True}), flush=True)',
        "from ascent.sandbox.pool import signal_ready; signal_ready()",
    )
    assert echo != ECHO
    with Pool(lambda slot: [sys.executable, "-c", echo], 1) as pool:
        (first,) = pool.map(["a"], 30)
        time.sleep(0.1)
        assert pool.map(["b"], 30) == [["b", first[1]]]
    deadline = time.monotonic() + 10
    while Path(f"/proc/{first[1]}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{first[1]}").exists()


# A run whose program forks and never ends; it tells when the program is there.
RUN = """
import sys
from ascent.sandbox.limits import Limits
from ascent.sandbox.programs import Sandbox
sandbox = Sandbox(workers=2, limits=Limits(wall_seconds=60, test_seconds=60, cpu_seconds=60))
print("made", flush=True)
sandbox.run("import os\\nfor _ in range(3):\\n    os.fork()\\nwhile True: pass")
"""


@wall_clock
@pytest.mark.skipif(
    shutil.which("bwrap") is None and os.environ.get("CI") != "true",
    reason="the package bubblewrap is not installed (with CI=true this is a failure)",
)
@pytest.mark.parametrize("processes", [1, 3, 5, 11])
def test_everything_ends_with_the_run_even_when_it_is_killed(processes):
    """Killed when it has so many processes below it: a worker, bubblewrap, its first process, the driver, a program."""
    with subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None and run.stdout.readline() == b"made\n"
        deadline = time.monotonic() + 60
        while len(there := descendants(run.pid)[1:]) < processes and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(there) >= processes
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    deadline = time.monotonic() + 5
    while any(alive(pid) for pid in there) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert [pid for pid in there if alive(pid)] == []
