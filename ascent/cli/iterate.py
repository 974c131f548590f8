"""`ascent rounds`: iterated learning from feedback."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ascent.cli.collect import INTERRUPTED
from ascent.cli.train import Overrides, Recipe, plain_errors, say


def rounds(
    recipe: Recipe,
    overrides: Overrides = None,
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of all stages; the same one again continues.")
    ] = None,
) -> None:
    """Fine-tune, collect, train a reward model, train the policy, measure; again and again, resumable anywhere."""
    if run is None:
        raise ValueError("rounds needs a folder; add --run DIR, a new one or one that rounds has begun")
    from ascent.config.iterate import iterate_config
    from ascent.config.load import merged, parse_overrides, read_recipe

    found = iterate_config(merged(read_recipe(recipe), parse_overrides(overrides or [])), recipe)
    with plain_errors():
        from ascent.api.iterate import iterate as run_rounds
        from ascent.api.stages import StageStopped
        from ascent.cli.annotate import AtTerminal

        try:
            done = run_rounds(found, run, person=AtTerminal(), say=say)
        except (StageStopped, KeyboardInterrupt) as stopped:
            say(f"{stopped}; the same command goes on from there")
            raise typer.Exit(INTERRUPTED if isinstance(stopped, KeyboardInterrupt) else 0) from None
    for number, each in enumerate(done, 1):
        figures = each.figures
        line = f"round {number}  {each.policy}"
        if figures is not None:
            rate, scores = figures["win_rate"], figures["scores"]
            line += f"  win rate {rate['value']:.3f} ({rate['low']:.3f} to {rate['high']:.3f})"
            line += f"  mean score {scores[0]:.3f}, first policy {scores[1]:.3f}" if scores else ""
        typer.echo(line)
