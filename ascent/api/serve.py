"""Serve models over HTTP: `ascent serve` and `ascent serve-reward`."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from ascent import http_server
from ascent.rewards.remote import read_token
from ascent.rewards.serve import create_server


def serve(
    model: str,
    *,
    port: int = 8000,
    host: str = "127.0.0.1",
    token_file: str | Path | None = None,
    name: str | None = None,
    dtype: str = "auto",
    max_model_len: int | None = None,
    trust_remote_code: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Serve a model over HTTP until interrupted, with the OpenAI protocol and exact log-probs.

    model: a run, a model folder or a hub name.
    port: the port to listen on; 0 takes a free one.
    host: the address to listen on.
    token_file: a file with the key that clients must send; by default a new one is made and printed.
    name: the name of the model for clients; by default `model`.
    dtype: float32, bfloat16 or auto.
    max_model_len: tokens of a prompt and its completion; by default the model's context, at most 32768.
    trust_remote_code: run the code of the model's repository, with all your permissions.
    say: receives the address and the key once the server is ready.

        serve("runs/grpo", port=8000)
    """
    token = read_token(None if token_file is None else str(token_file)) or secrets.token_urlsafe(24)
    # Bound before the model is loaded: an address that is taken is known at once, and early clients wait.
    http = http_server.create_server({}, host=host, port=port, token=token)
    try:
        from ascent.engines.serve import ModelServer, error_body
        from ascent.models.dtype import default_dtype
        from ascent.setup.policy import load_frozen

        dtype = default_dtype() if dtype == "auto" else dtype
        loaded = load_frozen(model, dtype=dtype, trust_remote_code=trust_remote_code)
        server = ModelServer(loaded, name or model, max_model_len=max_model_len)
        http.routes, http.error_body = server.routes(), error_body
        key = f", key {token}" if token_file is None else ""
        say(f"serving {name or model} at {http.url}/v1{key}; Ctrl-C ends")
        try:
            http.serve_forever()
        finally:
            server.close()
    except KeyboardInterrupt:
        say("ended")
    finally:
        http.server_close()


def serve_reward(
    model: str,
    *,
    port: int = 8765,
    host: str = "127.0.0.1",
    token_file: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve a reward model over HTTP until interrupted; the reward `remote` is its client.

    model: a run, a model folder or a hub name, with a score head.
    port: the port to listen on; 0 takes a free one.
    host: the address to listen on; any other than loopback needs a token.
    token_file: a file with the token that clients must send.
    say: receives the address once the server is ready.

        serve_reward("runs/reward_model", port=8765)
    """
    token = read_token(None if token_file is None else str(token_file))
    # Bound before the model is loaded: an address that is taken is known at once, and early clients wait.
    http = create_server(
        lambda items: reward_model(items), serves=model, host=host, port=port, token=token
    )
    try:
        from ascent.setup.reward_models import RewardModel

        reward_model = RewardModel(model)
        say(f"serving {model} at {http.url}; Ctrl-C ends")
        http.serve_forever()
    except KeyboardInterrupt:
        say("ended")
    finally:
        http.server_close()
