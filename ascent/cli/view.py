"""`ascent view`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ascent.cli.lines import echo
from ascent.cli.options import plain_errors


def view(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FOLDER]...", help="Run folders, or folders that hold some."),
    ] = None,
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")] = 8770,
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on; on any other than loopback, the link has a token."
        ),
    ] = "127.0.0.1",
) -> None:
    """Open a page over runs: curves, rollouts, settings, live."""
    from ascent.view import extra

    with plain_errors():
        extra.require()
        from ascent.view.page import view as view_runs

        view_runs(folders or (), port=port, host=host, say=echo)
