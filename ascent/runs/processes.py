"""Processes side by side, a limited number at a time."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ascent.runs.signals import GracefulStop

POLL_SECONDS = 0.1


class Job(NamedTuple):
    """A command with what it reads on standard input; its output goes to `log`."""

    name: str
    command: Sequence[str]
    stdin: str
    log: Path


def run_jobs(
    jobs: Sequence[Job], slots: Sequence[Mapping[str, str]], *, ended: Callable[[Job, int], None]
) -> str | None:
    """Run every job, as many at a time as there are slots; a slot is the environment of its jobs.

    `ended` receives each job with its exit status. A signal is passed on to the running jobs, which are waited for;
    its name is returned, and no further job is started.
    """
    waiting, free = list(jobs), list(slots)
    running: list[tuple[Job, subprocess.Popen[str], Mapping[str, str]]] = []
    passed_on = False
    with GracefulStop() as stop:
        while running or (waiting and not stop.requested):
            while waiting and free and not stop.requested:
                job, slot = waiting.pop(0), free.pop(0)
                running.append((job, _start(job, slot), slot))
            if stop.requested and not passed_on:
                passed_on = True
                for _, process, _ in running:
                    process.send_signal(signal.SIGINT)
            time.sleep(POLL_SECONDS)
            for each in [each for each in running if each[1].poll() is not None]:
                running.remove(each)
                free.insert(0, each[2])
                ended(each[0], each[1].returncode)
    return stop.received


def _start(job: Job, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("a", encoding="utf-8") as log:
        # In a session of its own: Ctrl-C in the terminal would reach it twice, and the second time ends it at once.
        process = subprocess.Popen(
            job.command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(environment),
            start_new_session=True,
        )
    assert process.stdin is not None
    process.stdin.write(job.stdin)
    process.stdin.close()
    return process
