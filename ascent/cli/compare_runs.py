"""`ascent compare-runs`, and the tables that `ascent sweep` shares with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascent.cli.completion import run_folders
from ascent.cli.evaluate import number_table
from ascent.cli.options import AsJson, plain_errors

if TYPE_CHECKING:
    from rich.console import Console

    from ascent.api.compare_runs import RunComparison, RunScore, ScoredRuns

PIPE_WIDTH = 500
MAX_COLUMNS = 3  # settings as columns of the list of runs; more are rows of a table of their own
Metrics = Annotated[
    list[str] | None, typer.Option("--metric", metavar="NAME", help="Compare this metric; may be given again.")
]


def compare_runs(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Runs, or folders that hold some.", autocompletion=run_folders),
    ],
    metrics: Metrics = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the curves: .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs: settings that differ, curves, held-out scores.

    Last and best scores have 95% intervals: of one run over its held-out prompts, of several seeds over the seeds.
    """
    with plain_errors():
        from ascent.api.compare_runs import compare_runs

        found = compare_runs(runs, metrics=metrics or (), plot=plot)
    if as_json:
        typer.echo(json.dumps(found.as_dict()))
    else:
        print_runs(found)


def print_runs(found: RunComparison) -> None:
    from rich.console import Console

    width = None if Console().is_terminal else PIPE_WIDTH
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    _print_settings(console, found)
    for name, larger in found.larger_is_better.items():
        console.print(f"\n{name} ({'higher' if larger else 'lower'} is better)")
        _print_scores(console, found.runs, name, [str(place) for place in range(1, len(found.runs) + 1)])
        groups = [each for each in found.groups if len(each.runs) > 1]
        if groups:
            console.print(f"\n{name}, mean over seeds")
            _print_scores(console, groups, name, [f"{each.label} ({len(each.runs)} seeds)" for each in groups])
    if found.plot:
        console.print(f"\ncurves: {found.plot}")


def _print_settings(console: Console, found: RunComparison) -> None:
    """The runs by number, with what differs: as columns where it fits, else as a table of one row per key."""
    from ascent.api.compare_runs import format_setting, short_keys

    few = short_keys(found.settings) if len(found.settings) <= MAX_COLUMNS else {}
    table = number_table("", "run", "state", *few)
    for column in table.columns[1:3]:
        column.justify = "left"
    for place, each in enumerate(found.runs):
        table.add_row(str(place + 1), each.runs[0], each.state, *(format_setting(few[key][place]) for key in few))
    console.print(table)
    if not found.settings:
        console.print("\nthe settings are the same")
    elif not few:
        rows = number_table("differs", *(str(place) for place in range(1, len(found.runs) + 1)))
        for key, values in found.settings.items():
            rows.add_row(key, *map(format_setting, values))
        console.print()
        console.print(rows)


def _print_scores(console: Console, runs: Sequence[ScoredRuns], name: str, labels: Sequence[str]) -> None:
    from ascent.runs.sparkline import sparkline

    table = number_table("", "curve", "last", "95% interval", "best", "95% interval", "step")
    for each, label in zip(runs, labels, strict=True):
        if name in each.scores:
            score = each.scores[name]
            curve = sparkline([value for _, value in score.curve])
            table.add_row(label, curve, *_cells(score.last), *_cells(score.best), str(score.best.step))
        else:
            table.add_row(label, "not logged")
    console.print(table)


def _cells(score: RunScore) -> tuple[str, str]:
    known = score.low is not None and score.high is not None
    return f"{score.value:.4g}", f"{score.low:.3g} to {score.high:.3g}" if known else "-"
