"""Runs that follow each other in one folder: each is finished, unfinished or absent, and its folder says which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ascent.api import training
from ascent.plan.resolve import Plan
from ascent.runs.folder import CONFIG, read_run

Say = Callable[[str], None]


class StageStopped(Exception):
    """A stage was asked to stop, or a person quit; nothing is wrong and nothing is lost."""


def stage(plan: Plan, folder: Path, say: Say) -> None:
    """A new run, the rest of one, or nothing where it is finished."""
    if not (folder / CONFIG).is_file():
        last = training.train(plan, folder, say=say)
    elif read_run(folder).state == "finished":
        say(f"{folder} is finished")
        return
    else:
        last = training.resume(folder, say=say)
    if last < plan.config.run.steps:
        raise StageStopped(f"{folder} was asked to stop after step {last}")
