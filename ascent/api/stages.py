"""Runs that follow each other in one folder, each of them finished, unfinished or absent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ascent.api.train import resume_run, train_plan
from ascent.plan.resolve import Plan
from ascent.runs.folder import CONFIG, read_run, state_of

Say = Callable[[str], None]


class StageStopped(Exception):
    """A stage stopped on a signal, or a person quit. Nothing is lost."""


def stage(
    plan: Plan,
    folder: Path,
    say: Say,
    *,
    progress: bool = True,
    header: str = "",
    given: Mapping[str, Any] | None = None,
) -> None:
    """Train a new run, resume an unfinished one, skip a finished one. `given` are the plan's objects by their keys."""
    if not (folder / CONFIG).is_file():
        last = train_plan(plan, folder, progress=progress, say=say, header=header)
    elif state_of(folder) == "finished":
        say(f"{folder} is finished")
        return
    else:
        last = resume_run(folder, given=given, progress=progress, say=say)
    run = read_run(folder)
    if run.state == "stopped":
        raise StageStopped(f"{folder} {run.message or 'stopped'} after step {last}")
