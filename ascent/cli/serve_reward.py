"""`ascent serve-reward`: a reward model over HTTP, for runs that use the reward `remote`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ascent.cli.train import plain_errors


def serve_reward(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run, a model folder or a hub name.")],
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")] = 8765,
    host: Annotated[
        str, typer.Option(help="The address to listen on; others than loopback need a token.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file that holds the token clients must send.")
    ] = None,
) -> None:
    """Serve a reward model over HTTP until interrupted; the reward `remote` asks it."""
    from ascent.rewards.remote import read_token
    from ascent.rewards.serve import server

    token = read_token(None if token_file is None else str(token_file))
    # Bound before the model is loaded: an address that cannot be had is known at once, and early clients wait.
    serving = server(lambda items: scored(items), serves=model, host=host, port=port, token=token)
    try:
        with plain_errors():
            from ascent.setup.reward_models import RewardModel

            scored = RewardModel(model)
        typer.echo(f"serving {model} at {serving.url}; Ctrl-C ends")
        serving.serve_forever()
    except KeyboardInterrupt:
        typer.echo("ended")
    finally:
        serving.server_close()
