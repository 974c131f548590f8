"""A limited number at a time, each slot its environment, failures reported, a signal passed on."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from ascent.runs.processes import Job, run_jobs
from tests.wall_clock import wall_clock


def make_job(tmp_path: Path, name: str, code: str, stdin: str = "") -> Job:
    return Job(
        name,
        [sys.executable, "-S", "-c", f"import os, sys, time\n{code}"],
        stdin,
        tmp_path / f"{name}.log",
    )


@wall_clock
def test_jobs_run_in_slots_and_report_their_status(tmp_path: Path) -> None:
    """Each of four jobs writes when it was there: never more than two at once, and each slot keeps its variable."""
    code = "start = time.time(); time.sleep(0.3); print(sys.stdin.read(), os.environ['SLOT'], start, time.time())"
    jobs = [make_job(tmp_path, f"j{n}", code, f"in{n}") for n in range(4)]
    jobs.append(make_job(tmp_path, "bad", "print('first'); sys.exit('wrong')"))
    ended: dict[str, int] = {}
    slots = [{**os.environ, "SLOT": name} for name in "ab"]
    assert run_jobs(jobs, slots, ended=lambda job, status: ended.update({job.name: status})) is None
    assert ended == {**{f"j{n}": 0 for n in range(4)}, "bad": 1}
    assert (tmp_path / "bad.log").read_text().splitlines() == ["first", "wrong"]
    lines = [(tmp_path / f"j{n}.log").read_text().split() for n in range(4)]
    assert [line[0] for line in lines] == [f"in{n}" for n in range(4)]
    assert {line[1] for line in lines} == {"a", "b"}
    spans = [(float(line[2]), float(line[3])) for line in lines]
    assert all(sum(low < start < high for low, high in spans) <= 1 for start, _ in spans)
    assert any(
        low < start < high for low, high in spans for start, _ in spans
    )  # and they do overlap


@wall_clock
def test_a_signal_reaches_running_jobs_once_and_no_other_starts(tmp_path: Path) -> None:
    code = (
        "import signal\nseen = []\nsignal.signal(signal.SIGINT, lambda *_: seen.append(1))\nopen(sys.argv[1], 'w')\n"
        "end = time.time() + 20\nwhile not seen and time.time() < end: time.sleep(0.02)\ntime.sleep(0.3)\nprint(seen)"
    )
    ready = tmp_path / "ready"
    waiting = make_job(tmp_path, "waiting", code)
    waiting = waiting._replace(command=[*waiting.command, str(ready)])
    never = make_job(tmp_path, "never", "print('started')")

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    ended: list[str] = []
    assert (
        run_jobs([waiting, never], [os.environ], ended=lambda job, status: ended.append(job.name))
        == "SIGINT"
    )
    thread.join()
    assert ended == ["waiting"] and (tmp_path / "waiting.log").read_text() == "[1]\n"
    assert not (tmp_path / "never.log").exists()
