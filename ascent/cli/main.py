"""The command itself: verbs, `--version`, and how errors reach a person."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ascent import __version__
from ascent.cli import (
    classic,
    collect,
    compare,
    doctor,
    evaluate,
    inspect,
    iterate,
    models,
    quickstart,
    recipes,
    runs,
    serve_reward,
    show,
    train,
)

app = typer.Typer(
    name="ascent",
    help="Reinforcement-learning post-training for language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich's boxes would cost a third of the time it takes to answer
)
app.command("quickstart")(quickstart.quickstart)
app.command("train")(train.train)
app.command("resume")(train.resume)
app.command("collect")(collect.collect)
app.command("rounds")(iterate.rounds)
app.command("check")(train.check)
app.command("runs")(runs.runs)
app.command("sample")(models.sample)
app.command("evaluate")(evaluate.evaluate)
app.command("compare")(compare.compare)
app.command("score")(models.score)
app.command("export")(models.export)
app.command("serve-reward")(serve_reward.serve_reward)
app.command("recipes")(recipes.recipes)
app.add_typer(show.app, name="show")
app.command("inspect")(inspect.inspect)
app.add_typer(classic.app, name="classic")
app.command("doctor")(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ascent {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def run() -> None:
    """Entry point. A ValueError is for the user: it is printed, one line for each problem, without a traceback. So is
    what the system says of a file: no rights, no space."""
    try:
        app()
    except (ValueError, OSError) as error:
        for line in str(error).splitlines():
            print(f"ascent: {line}", file=sys.stderr)
        sys.exit(2)
