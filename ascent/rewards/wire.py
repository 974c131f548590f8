"""What travels between a trainer and a reward server: JSON, the same for the client and for `ascent serve-reward`.

    POST /score   {"rollouts": [{"prompt_id": "p", "sample": 0, "messages": [{"role": "user", "content": "..."}],
                                 "completion": "...", "answer": null, "info": {}, "tokens": 17}]}
                  -> {"scores": [0.5]}       a number, null for "cannot say", or an object of named parts
    GET  /health  -> {"ok": true, "serves": "name"}

A token, where the server has one, goes in the header `Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ascent.protocols import Score
from ascent.records import Rollout

MOST_BYTES = 64 << 20


class BadMessage(ValueError):
    """A body that is not what this page says."""


def request_body(rollouts: Sequence[Rollout]) -> bytes:
    items = [
        {
            "prompt_id": rollout.prompt.id,
            "sample": rollout.sample,
            "messages": [{"role": each.role, "content": each.content} for each in rollout.prompt.messages],
            "completion": rollout.text,
            "answer": rollout.prompt.answer,
            "info": dict(rollout.prompt.info),
            "tokens": rollout.length,
        }
        for rollout in rollouts
    ]
    try:
        return json.dumps({"rollouts": items}, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"a prompt's info cannot be sent as JSON ({error}); keep plain data in Prompt.info") from error


def read_scores(body: bytes, count: int) -> list[Score]:
    """The scores of a reply; BadMessage for anything but `count` of them."""
    scores = read_object(body).get("scores")
    if not isinstance(scores, list):
        raise BadMessage("the reply has no list of scores")
    if len(scores) != count:
        raise BadMessage(f"{len(scores)} scores for {count} rollouts")
    for score in scores:
        values = list(score.values()) if isinstance(score, dict) else [score]
        if any(isinstance(value, bool) or not isinstance(value, int | float | None) for value in values):
            raise BadMessage(f"a score is {str(score)[:60]!r}; scores are numbers, null, or named parts")
    return scores


def read_object(body: bytes) -> dict[str, Any]:
    """A JSON object without NaN and infinities, which are not JSON."""
    try:
        found = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadMessage(f"a {type(found).__name__}, not an object")
    return found


def read_items(body: bytes) -> list[tuple[list[Mapping[str, str]], str]]:
    """(messages, completion) of each rollout in a request."""
    items = read_object(body).get("rollouts")
    if not isinstance(items, list):
        raise BadMessage("the request has no list of rollouts")
    found = []
    for item in items:
        messages = item.get("messages") if isinstance(item, dict) else None
        if not isinstance(messages, list) or not messages or not isinstance(item.get("completion"), str):
            raise BadMessage("a rollout needs messages (a list that is not empty) and a completion (text)")
        if not all(isinstance(each, dict) and {"role", "content"} <= each.keys() for each in messages):
            raise BadMessage("a message needs a role and a content")
        found.append((messages, item["completion"]))
    return found


def _refuse(word: str) -> Any:
    raise BadMessage(f"{word} is no JSON")
