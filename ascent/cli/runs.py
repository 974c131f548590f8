"""`ascent runs` and `ascent show run | samples`: what is in run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ascent.cli.train import plain_errors

SHOWN = ("loss/total", "reward/mean", "reward/correct", "preference/accuracy")
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]


def runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that holds runs.")] = Path("runs"),
) -> None:
    """List the runs in a folder: state, step, last numbers."""
    with plain_errors():
        from ascent.runs.folder import list_runs

        found = list_runs(folder)
    if not found:
        typer.echo(f"no runs in {folder}")
    for each in found:
        numbers = "  ".join(f"{k} {each.latest[k]:.4g}" for k in SHOWN if k in each.latest)
        typer.echo(f"{each.name:<30} {each.state:<9} step {each.step:<7} {numbers}")


def show_run(folder: Folder) -> None:
    """Print a run: state, checkpoints, where it ran, its config, its last metrics, and what it was warned of."""
    with plain_errors():
        from ascent.runs.folder import read_run

        run = read_run(folder)
    typer.echo(f"{run.path}: {run.state}{f' ({run.message})' if run.message else ''}, {len(run.environment)} starts")
    typer.echo(f"checkpoints: {', '.join(map(str, run.checkpoints)) or 'none'}")
    for start in run.environment[-1:]:
        typer.echo(f"python {start['python']}, {start['system']}; {' '.join(start['command'])}")
    for change in run.changes:
        typer.echo(f"changed from step {change['step']} on: {change['key']}{told(change)}")
    for note in run.notes:
        typer.echo(f"note: {note}")
    typer.echo("config:")
    typer.echo("".join(f"  {line}\n" for line in run.config.splitlines()), nl=False)
    if run.metrics:
        typer.echo("last metrics:")
        for name, value in run.metrics[-1].items():
            typer.echo(f"  {name:<32} {value:.6g}")
    if run.warnings:
        typer.echo("warnings:")
    for each in run.warnings:
        number = f"{each['reads']} {each['value']:.4g}: " if "value" in each else ""
        text = f"  step {each['step']}, {each['name']}: {number}{each['why']} {each.get('do', '')}"
        typer.secho(text.rstrip(), fg="yellow")


def told(change: dict[str, Any]) -> str:
    """A line of changes.jsonl: the values of a key, or that the content of an input is another."""
    if change.get("input"):
        return " (its content)"
    return f" {change.get('was', '(not set)')} -> {change.get('now', '(not set)')}"


def show_samples(
    folder: Folder,
    step: Annotated[int | None, typer.Option(help="Only those of this step; the last one otherwise.")] = None,
    best: Annotated[bool, typer.Option("--best", help="Highest reward first, over all steps.")] = False,
    worst: Annotated[bool, typer.Option("--worst", help="Lowest reward first, over all steps.")] = False,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="Only prompts with this text, any step.")] = None,
    limit: Annotated[int, typer.Option(help="How many to print.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print lines of JSON.")] = False,
) -> None:
    """Print what a run's policy said: tokens green where their advantage is positive, red where it is negative."""
    import json

    with plain_errors():
        from ascent.cli import samples
        from ascent.runs.folder import read_run

        kept = read_run(folder).samples
    if not kept:
        typer.echo("this run kept no samples; algorithms that learn from rollouts keep some")
        return
    found = samples.chosen(kept, step=step, best=best, worst=worst, prompt=prompt)
    if as_json:
        typer.echo("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in found[:limit]), nl=False)
        return
    samples.print_samples(found, limit)
    missing = samples.left_out(kept, step if step is not None else kept[-1]["step"])
    if missing:
        typer.echo(missing)
