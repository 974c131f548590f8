"""A process that runs the reward functions of a run, started by its launcher on some machine of a cluster:

    python -m ascent.rewards.worker WANTED --host HOST --port PORT --token-file FILE

WANTED names the rewards with their options (`runs/reward_worker_files.py`). A call is made as in the trainer's process
(`rewards.calls`), so errors and time-outs read the same.

    POST /v1/score   one call (`rewards.rollout_json`)
                     -> {"outcomes": [...]}, {"failed": WHY} if the run must end, {"busy": true} if too many are running
    GET  /health     -> {"ok": true}
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ascent import http_server
from ascent.http_server import Call, Route, Server
from ascent.rewards.calls import call_reward
from ascent.rewards.outcome import RewardFailed
from ascent.rewards.placed import calls_at_once
from ascent.rewards.registry import Batch, Reward, find
from ascent.rewards.remote import read_token
from ascent.rewards.rollout_json import call_from_json, outcomes_to_json

MAX_REQUEST_BYTES = 1 << 30  # a batched reward gets all rollouts of a step at once


def create_worker(
    rewards: Mapping[str, Reward],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
) -> Server:
    """A bound server; `serve_forever` runs it. A reward has as many calls at once as in a trainer."""
    free = {name: threading.Semaphore(calls_at_once(reward)) for name, reward in rewards.items()}

    def score(call: Call) -> dict[str, Any]:
        name, timeout, rollouts = call_from_json(call.body)
        if not free[name].acquire(blocking=False):
            return {"busy": True}
        try:
            return {
                "outcomes": outcomes_to_json(call_reward(name, rewards[name], rollouts, timeout))
            }
        except RewardFailed as error:
            return {"failed": str(error)}
        finally:
            free[name].release()

    health = Route("GET", lambda _: {"ok": True})
    routes = {
        "/v1/score": Route("POST", score, MAX_REQUEST_BYTES),
        "/health": health,
        "/v1/health": health,
    }
    return http_server.create_server(routes, host=host, port=port, token=token)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ascent.rewards.worker", description=__doc__)
    parser.add_argument("wanted", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token-file")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: _end())
    listed = json.loads(given.wanted.read_text(encoding="utf-8"))["rewards"]
    with ExitStack() as exits:
        rewards = {name: find(each["use"], **each["options"]) for name, each in listed.items()}
        for reward in rewards.values():
            if isinstance(reward, Batch):
                exits.callback(reward.close)
        server = create_worker(
            rewards, host=given.host, port=given.port, token=read_token(given.token_file)
        )
        exits.callback(server.server_close)
        print(f"rewards {', '.join(rewards)} at {server.url}", flush=True)
        server.serve_forever()


def _end() -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
