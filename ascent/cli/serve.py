"""`ascent serve` and `ascent serve-reward`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ascent.cli.lines import echo
from ascent.cli.options import Model, plain_errors

Port = Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")]


def serve(
    model: Model,
    port: Port = 8000,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 is open to other machines.")
    ] = ("127.0.0.1"),
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file with the key that clients must send; by default a new one is made.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The name of the model for clients.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or auto.")] = "auto",
    max_model_len: Annotated[
        int | None, typer.Option(help="Tokens of a prompt and its completion.")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option(help="Run the code of the model's repository.")
    ] = False,
) -> None:
    """Serve a model over HTTP with the OpenAI protocol."""
    from ascent.api.serve import serve

    with plain_errors():
        serve(
            model,
            port=port,
            host=host,
            token_file=token_file,
            name=name,
            dtype=dtype,
            max_model_len=max_model_len,
            trust_remote_code=trust_remote_code,
            say=echo,
        )


def serve_reward(
    model: Model,
    port: Port = 8765,
    host: Annotated[
        str, typer.Option(help="The address to listen on; any other than loopback needs a token.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with the token that clients must send."),
    ] = None,
) -> None:
    """Serve a reward model over HTTP, for the reward `remote`."""
    from ascent.api.serve import serve_reward

    with plain_errors():
        serve_reward(model, port=port, host=host, token_file=token_file, say=echo)
