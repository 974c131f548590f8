"""`ascent runs`, `ascent show run`, `ascent show samples`."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ascent.cli.lines import echo
from ascent.cli.options import AsJson, Run, plain_errors

SHOWN = ("loss/total", "reward/mean", "reward/correct", "preference/accuracy")


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder that holds runs.")
    ] = Path("runs"),
) -> None:
    """List the runs in a folder and its subfolders."""
    with plain_errors():
        from ascent.runs.folder import list_runs

        found = list_runs(folder)
    if not found:
        typer.echo(f"no runs in {folder}")
    width = max((len(each.name) for each in found), default=0)
    for each in found:
        numbers = "  ".join([f"{k} {each.latest[k]:.4g}" for k in SHOWN if k in each.latest][:2])
        echo(f"{each.name:<{width}}  {each.state:<9} step {each.step:<6} {numbers}".rstrip())


def show_run(run: Run) -> None:
    """Print a run: state, config, last metrics, warnings."""
    with plain_errors():
        from ascent.runs.folder import read_run

        found = read_run(run)
    echo(
        f"{found.path}: {found.state}{f' ({found.message})' if found.message else ''}, {len(found.environment)} starts"
    )
    echo(f"checkpoints: {', '.join(map(str, found.checkpoints)) or 'none'}")
    for start in found.environment[-1:]:
        echo(f"python {start['python']}, {start['system']}; {' '.join(start['command'])}")
    for change in found.changes:
        echo(f"changed from step {change['step']} on: {change['key']}{_change_text(change)}")
    for note in found.notes:
        echo(f"note: {note}")
    typer.echo("config:")
    typer.echo("".join(f"  {line}\n" for line in found.config.splitlines()), nl=False)
    if found.metrics:
        typer.echo("last metrics:")
        for name, value in found.metrics[-1].items():
            typer.echo(f"  {name:<32} {format_metric(name, value)}")
    if found.warnings:
        typer.echo("warnings:")
    for each in found.warnings:
        number = f"{each['reads']} {each['value']:.4g}: " if "value" in each else ""
        text = f"  step {each['step']}, {each['name']}: {number}{each['why']} {each.get('fix', '')}"
        echo(text.rstrip(), color="yellow")


def format_metric(name: str, value: float) -> str:
    """A point in time as local date and time, a duration as seconds or h:mm:ss, any other number in six digits."""
    from ascent.metrics import SECONDS, find_metric

    if name == "timestamp":
        return datetime.fromtimestamp(value).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    known = find_metric(name)
    if known is None or known.unit != SECONDS or not math.isfinite(value):
        return f"{value:.6g}"
    whole = round(value)
    return (
        f"{value:.3g} s"
        if value < 60
        else f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    )


def _change_text(change: dict[str, Any]) -> str:
    """A line of changes.jsonl: the values of a key, or that the content of an input changed."""
    if change.get("input"):
        return " (its content)"
    return f" {change.get('was', '(not set)')} -> {change.get('now', '(not set)')}"


def show_samples(
    run: Run,
    step: Annotated[int | None, typer.Option(help="The step; by default the last one.")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Highest reward first, over all steps.")
    ] = False,
    worst: Annotated[
        bool, typer.Option("--worst", help="Lowest reward first, over all steps.")
    ] = False,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only prompts with this text, any step.")
    ] = None,
    limit: Annotated[int, typer.Option(help="How many to print.")] = 8,
    as_json: AsJson = False,
) -> None:
    """Print samples of a run, tokens colored by advantage.

    Green is a positive advantage, red a negative one.
    """
    import json

    with plain_errors():
        from ascent.cli import samples
        from ascent.runs.folder import read_run

        kept = read_run(run).samples
    if not kept:
        typer.echo("this run kept no samples; algorithms that learn from rollouts keep some")
        return
    selected = samples.select_samples(kept, step=step, best=best, worst=worst, prompt=prompt)
    if as_json:
        typer.echo(
            "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in selected[:limit]),
            nl=False,
        )
        return
    samples.print_samples(selected, limit)
    note = samples.omission_note(kept, step if step is not None else kept[-1]["step"])
    if note:
        echo(note)
