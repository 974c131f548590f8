"""`ascent forecast`, `ascent forecast-score`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ascent.cli.lines import echo, format_bytes, peak_text
from ascent.cli.options import AsJson, Overrides, Recipe, Run, plain_errors, say

if TYPE_CHECKING:
    from ascent.api.forecast import RunForecast


def forecast(
    recipe: Recipe,
    overrides: Overrides = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="From this card's data sheet, such as H200.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Forecast memory, time by phase, tokens and disk of a run.

    A few steps are measured here and thrown away; with --gpu the numbers come from a data sheet.
    """
    with plain_errors():
        from ascent.api.forecast import forecast

        found = forecast(recipe, overrides or (), gpu=gpu, say=say)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
    else:
        print_forecast(found)


def forecast_score(
    run: Run,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="What to forecast; a score from 0 to 1.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Forecast the score at the end of a run that is going on."""
    with plain_errors():
        from ascent.api.forecast import forecast_score

        found = forecast_score(run, metric=metric)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
    else:
        echo(found.text())


def print_forecast(found: RunForecast) -> None:
    phases = ", ".join(
        f"{name.removeprefix('time/')} {seconds:.3g} s" for name, seconds in found.phases.items()
    )
    rows = {
        "on": found.device,
        "one step": f"{found.step_seconds:.3g} s: {phases}",
        "an evaluation": f"{found.evaluation_seconds:.3g} s",
        "a checkpoint": f"{found.checkpoint_seconds:.3g} s, {format_bytes(found.checkpoint_bytes)}",
        "the run": f"{found.steps} steps, {_duration(found.total_seconds)}, {found.tokens:.3g} tokens",
        "peak memory": peak_text(found.memory, found.available),
        "disk": format_bytes(found.disk),
        "limited by": found.limit,
    }
    for name, value in rows.items():
        echo(f"{name:<14} {value}", hang=15)


def _duration(seconds: float) -> str:
    units = (("days", 86400), ("hours", 3600), ("minutes", 60))
    return next(
        (f"{seconds / size:.1f} {name}" for name, size in units if seconds >= 2 * size),
        f"{seconds:.1f} s",
    )
