"""`ascent iterate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ascent.cli.lines import echo
from ascent.cli.options import INTERRUPTED, Overrides, Progress, Recipe, plain_errors, say


def iterate(
    recipe: Recipe,
    overrides: Overrides = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of all stages; the same one again continues."),
    ] = None,
    progress: Progress = True,
) -> None:
    """Repeat rounds of feedback, reward model and policy training.

    A round collects preferences on the newest policy's answers, trains a reward model, trains the policy and measures
    it. The same command again continues after any interruption.
    """
    if run is None:
        raise ValueError("iterate needs a folder; add --run DIR, a new one or one to continue")
    with plain_errors():
        from ascent.api.iterate import iterate
        from ascent.api.stages import StageStopped
        from ascent.cli.annotate import TerminalAnnotator

        try:
            rounds = iterate(
                recipe,
                overrides or (),
                run=run,
                progress=progress,
                person=TerminalAnnotator(),
                say=say,
            )
        except (StageStopped, KeyboardInterrupt) as stopped:
            say(f"{stopped}; the same command continues from there")
            interrupted = isinstance(stopped, KeyboardInterrupt) or "SIGINT" in str(stopped)
            raise typer.Exit(INTERRUPTED if interrupted else 0) from None
    for number, each in enumerate(rounds, 1):
        line = f"round {number}  {each.policy}"
        if each.comparison is not None:
            rate, scores = each.comparison["win_rate"], each.comparison["scores"]
            line += f"  win rate {rate['value']:.3f} ({rate['low']:.3f} to {rate['high']:.3f})"
            line += f"  mean score {scores[0]:.3f}, first policy {scores[1]:.3f}" if scores else ""
        echo(line)
