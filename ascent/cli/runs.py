"""`ascent runs` and `ascent show run | samples`: what is in run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ascent.cli.train import plain_errors

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
        numbers = "  ".join(f"{k} {each.latest[k]:.4g}" for k in ("loss", "reward", "accuracy") if k in each.latest)
        typer.echo(f"{each.name:<30} {each.state:<9} step {each.step:<7} {numbers}")


def show_run(folder: Folder) -> None:
    """Print a run: state, checkpoints, where it ran, its last metrics and its config."""
    with plain_errors():
        from ascent.runs.folder import read_run

        run = read_run(folder)
    start = run.environment[-1]
    typer.echo(f"{run.path}: {run.state}{f' ({run.message})' if run.message else ''}, {len(run.environment)} starts")
    typer.echo(f"checkpoints: {', '.join(map(str, run.checkpoints)) or 'none'}")
    typer.echo(f"python {start['python']}, {start['system']}; {' '.join(start['command'])}")
    for note in run.notes:
        typer.echo(f"note: {note}")
    if run.metrics:
        typer.echo("last metrics:")
        for name, value in run.metrics[-1].items():
            typer.echo(f"  {name:<32} {value:.6g}")
    typer.echo("config:")
    typer.echo("".join(f"  {line}\n" for line in run.config.splitlines()), nl=False)


def show_samples(
    folder: Folder, last: Annotated[int, typer.Option(help="How many of the newest to print.")] = 10
) -> None:
    """Print the samples a run kept."""
    import json

    with plain_errors():
        from ascent.runs.folder import read_run

        samples = read_run(folder).samples
    if not samples:
        typer.echo("this run kept no samples; algorithms that learn from rollouts keep some")
    for each in samples[-last:]:
        typer.echo(json.dumps(each, ensure_ascii=False))
