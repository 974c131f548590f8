"""`ascent train`, `ascent resume`, `ascent check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ascent.cli.options import Overrides, Progress, Recipe, Run, plain_errors, say


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run folder to create; must be new or empty.")
    ] = None,
    progress: Progress = True,
) -> None:
    """Train from a recipe into a new run folder."""
    if run is None:
        raise ValueError("train needs a run folder; add --run DIR, a folder that does not exist yet")
    with plain_errors():
        from ascent.api.train import train

        train(recipe, overrides or (), run=run, progress=progress, say=say)


def resume(
    run: Run,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Continue although inputs have changed; it is recorded.")
    ] = False,
    progress: Progress = True,
) -> None:
    """Continue a run from its newest valid checkpoint, bit for bit."""
    with plain_errors():
        from ascent.api.train import resume

        resume(run, accept_changes=accept_changes, progress=progress, say=say)


def check(recipe: Recipe, overrides: Overrides = None) -> None:
    """Try a recipe without keeping anything; forecast memory and time.

    Everything that a run does is done once: load, render, two optimizer steps.
    """
    with plain_errors():
        from ascent.api.check import check
        from ascent.cli.check_table import print_check

        print_check(check(recipe, overrides or ()))
