"""Arguments and options that several commands share, and how commands report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ascent.cli.completion import recipe_names, run_folders

INTERRUPTED = 130  # the exit status after Ctrl-C

Recipe = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A shipped recipe or a .yaml file.", autocompletion=recipe_names)
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Dotted keys to set, such as rollouts.group_size=16.")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=run_folders)]
Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A run, a model folder or a hub name.", autocompletion=run_folders)
]
Limit = Annotated[int | None, typer.Option(help="At most this many prompts.")]
MaxNewTokens = Annotated[int, typer.Option(help="Token budget of a completion.")]
Temperature = Annotated[float, typer.Option(help="Sampling temperature, above 0.")]
TopP = Annotated[float, typer.Option(help="Nucleus sampling: keep this much probability mass.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.")]
Progress = Annotated[bool, typer.Option("--progress/--no-progress", help="Show progress on standard error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


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
