"""`ascent train`, `ascent resume`, `ascent check`: from a recipe to a trained model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

Recipe = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name (ascent recipes lists them) or a .yaml file.")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Dotted keys to set, such as rollouts.group_size=16.")
]


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run folder to create; must be new or empty.")
    ] = None,
) -> None:
    """Train from a recipe into a new run folder."""
    if run is None:
        raise ValueError("train needs a run folder; add --run DIR, a folder that does not exist yet")
    from ascent import __version__
    from ascent.config.load import load_config
    from ascent.plan import resolve

    plan = resolve(load_config(recipe, overrides or []))
    header = f"# Resolved by ascent {__version__} from {recipe}; itself a recipe.\n"
    with plain_errors():
        from ascent.api.train import train_plan

        train_plan(plan, run, say=say, header=header)


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Go on although inputs of the run have changed; it is recorded.")
    ] = False,
) -> None:
    """Continue a run from its newest whole checkpoint, to the same bits."""
    with plain_errors():
        from ascent.api.train import resume_run

        resume_run(run, accept_changes=accept_changes, say=say)


def check(recipe: Recipe, overrides: Overrides = None) -> None:
    """Do everything a run would do once, keep nothing: parse, render, one step, forecast of memory and time."""
    from ascent.config.load import load_config
    from ascent.plan import resolve

    plan = resolve(load_config(recipe, overrides or []))
    with plain_errors():
        from ascent.api.check import check as run_check
        from ascent.cli.check_table import print_checked

        print_checked(run_check(plan), plan)


def say(text: str) -> None:
    typer.echo(text, err=True)


@contextmanager
def plain_errors() -> Iterator[None]:
    """What a person can mend reaches them as one line; anything else is a bug and keeps its traceback."""
    from ascent.checkpoints.manifest import CheckpointError
    from ascent.runs.lock import Locked
    from ascent.update.learner import Diverged

    try:
        yield
    except (CheckpointError, Locked, Diverged, OSError, ImportError) as error:
        raise ValueError(str(error)) from error
