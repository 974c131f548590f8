"""`ascent sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ascent.cli.compare_runs import Metrics, print_runs
from ascent.cli.options import INTERRUPTED, Progress, Recipe, plain_errors, say


def sweep(
    recipe: Recipe,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=A,B,C", help="Values to try; KEY=A sets one.")
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of all runs; by default runs/RECIPE-sweep."),
    ] = None,
    jobs: Annotated[
        int, typer.Option(metavar="N", help="Runs at the same time; GPUs are shared out.")
    ] = 1,
    metrics: Metrics = None,
    progress: Progress = True,
) -> None:
    """Train every combination of some settings, then compare.

    The same command again continues: finished runs are kept, unfinished ones resumed. A comma inside brackets or
    quotes belongs to a value.
    """
    with plain_errors():
        from ascent.api.stages import StageStopped
        from ascent.api.sweep import sweep

        try:
            found = sweep(
                recipe,
                overrides or (),
                run=run,
                jobs=jobs,
                metrics=metrics or (),
                progress=progress,
                say=say,
            )
        except StageStopped as stopped:
            say(f"{stopped}; the same command continues from there")
            raise typer.Exit(INTERRUPTED) from None
    if found.comparison is not None:
        print_runs(found.comparison)
    for name, reason in found.failures.items():
        say(f"failed: {name} ({reason})")
    if found.failures:
        raise typer.Exit(1)
