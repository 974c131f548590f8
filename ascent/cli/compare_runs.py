"""`ascent compare-runs`, and the tables that `ascent sweep` shares with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascent.cli.completion import run_folders
from ascent.cli.lines import echo
from ascent.cli.options import AsJson, plain_errors

if TYPE_CHECKING:
    from rich.console import Console

    from ascent.api.compare_runs import RunComparison, RunScore, ScoredRuns

MAX_COLUMNS = 3  # settings as columns of the list of runs; more are rows of a table of their own
Metrics = Annotated[
    list[str] | None,
    typer.Option("--metric", metavar="NAME", help="Compare this metric; may be given again."),
]


def compare_runs(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Runs, or folders that hold some.", autocompletion=run_folders
        ),
    ],
    metrics: Metrics = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the curves: .png, .svg or .pdf.")
    ] = None,
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
    """The settings, then the scores of runs by number and of groups of seeds by letter."""
    from ascent.cli.console import make_console

    console = make_console()
    _print_settings(console, found)
    labels = {each.runs[0]: str(place) for place, each in enumerate(found.runs, 1)}
    groups = [each for each in found.groups if len(each.runs) > 1]
    if groups:
        echo()
    letters = [chr(ord("A") + place) if place < 26 else f"A{place}" for place in range(len(groups))]
    for letter, each in zip(letters, groups, strict=True):
        echo(
            f"{letter}  {each.label}: mean over the seeds of runs {', '.join(labels[run] for run in each.runs)}",
            hang=3,
        )
    for name, larger in found.larger_is_better.items():
        echo(f"\n{name} ({'higher' if larger else 'lower'} is better)")
        _print_scores(console, [*found.runs, *groups], name, [*labels.values(), *letters])
    if found.plot:
        echo(f"\ncurves: {found.plot}")


def _print_settings(console: Console, found: RunComparison) -> None:
    """The runs by number, with what differs: as columns where it fits, else as a table of one row per key."""
    from ascent.api.compare_runs import format_setting, short_keys
    from ascent.cli.console import print_table

    few = short_keys(found.settings) if len(found.settings) <= MAX_COLUMNS else {}
    runs = [
        (
            str(place + 1),
            each.runs[0],
            each.state,
            *(format_setting(few[key][place]) for key in few),
        )
        for place, each in enumerate(found.runs)
    ]
    print_table(console, ("", "run", "state", *few), runs)
    if not found.settings:
        echo("\nthe settings are the same")
    elif not few:
        numbers = [str(place) for place in range(1, len(found.runs) + 1)]
        values = [(key, *map(format_setting, values)) for key, values in found.settings.items()]
        echo()
        print_table(console, ("differs", *numbers), values, numbers=True)


def _print_scores(
    console: Console, runs: Sequence[ScoredRuns], name: str, labels: Sequence[str]
) -> None:
    from ascent.cli.console import print_table
    from ascent.runs.sparkline import sparkline

    columns = ("", "curve", "last", "95% interval", "best", "95% interval", "step")
    rows: list[tuple[str, ...]] = []
    for each, label in zip(runs, labels, strict=True):
        if name in each.scores:
            score = each.scores[name]
            curve = sparkline([value for _, value in score.curve])
            rows.append(
                (label, curve, *_cells(score.last), *_cells(score.best), str(score.best.step))
            )
        else:
            rows.append((label, "not logged", *[""] * (len(columns) - 2)))
    print_table(console, columns, rows, numbers=True)


def _cells(score: RunScore) -> tuple[str, str]:
    known = score.low is not None and score.high is not None
    return f"{score.value:.4g}", f"{score.low:.3g} to {score.high:.3g}" if known else "-"
