"""`ascent train`, `ascent resume`, `ascent check`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ascent.cli.completion import recipe_names, run_folders

Recipe = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A shipped recipe or a .yaml file.", autocompletion=recipe_names)
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Dotted keys to set, such as rollouts.group_size=16.")
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=run_folders)]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A run, a model folder or a hub name.", autocompletion=run_folders)
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
    with plain_errors():
        from ascent.api.train import train

        train(recipe, overrides or (), run=run, say=say)


def resume(
    run: RunArgument,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Continue although inputs have changed; it is recorded.")
    ] = False,
) -> None:
    """Continue a run from its newest valid checkpoint, bit for bit."""
    with plain_errors():
        from ascent.api.train import resume

        resume(run, accept_changes=accept_changes, say=say)


def check(recipe: Recipe, overrides: Overrides = None) -> None:
    """Try a recipe without keeping anything; forecast memory and time.

    Everything that a run does is done once: load, render, two optimizer steps.
    """
    with plain_errors():
        from ascent.api.check import check
        from ascent.cli.check_table import print_check

        print_check(check(recipe, overrides or ()))


def say(text: str) -> None:
    typer.echo(text, err=True)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn errors that the user can fix into ValueError, which is printed without a traceback."""
    try:
        yield
    except (OSError, ImportError) as error:
        raise ValueError(str(error)) from error
    except RuntimeError as error:
        from ascent.checkpoints.manifest import CheckpointError
        from ascent.runs.lock import FolderLockedError
        from ascent.update.learner import Diverged

        if isinstance(error, CheckpointError | FolderLockedError | Diverged):
            raise ValueError(str(error)) from error
        raise
