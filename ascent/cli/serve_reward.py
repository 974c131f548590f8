"""`ascent serve-reward`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ascent.cli.lines import echo
from ascent.cli.options import Model, plain_errors


def serve_reward(
    model: Model,
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")] = 8765,
    host: Annotated[
        str, typer.Option(help="The address to listen on; any other than loopback needs a token.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the token that clients must send.")
    ] = None,
) -> None:
    """Serve a reward model over HTTP, for the reward `remote`."""
    from ascent.api.serve import serve_reward

    with plain_errors():
        serve_reward(model, port=port, host=host, token_file=token_file, say=echo)
