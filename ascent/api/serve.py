"""Serve a reward model over HTTP: `ascent serve-reward`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ascent.rewards.remote import read_token
from ascent.rewards.serve import create_server


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
    http = create_server(lambda items: reward_model(items), serves=model, host=host, port=port, token=token)
    try:
        from ascent.setup.reward_models import RewardModel

        reward_model = RewardModel(model)
        say(f"serving {model} at {http.url}; Ctrl-C ends")
        http.serve_forever()
    except KeyboardInterrupt:
        say("ended")
    finally:
        http.server_close()
