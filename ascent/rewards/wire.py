"""The JSON format between a trainer and a reward server (`ascent serve-reward`).

    POST /score   {"rollouts": [{"prompt_id": "p", "sample": 0, "messages": [{"role": "user", "content": "..."}],
                                 "completion": "...", "answer": null, "info": {}, "tokens": 17}]}
                  -> {"scores": [0.5]}       a number, null for unscored, or an object of named parts
    GET  /health  -> {"ok": true, "serves": "name"}

If the server has a token: header `Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from ascent.http_client import parse_json_object
from ascent.protocols import Score
from ascent.records import Rollout

MAX_REQUEST_BYTES = 64 << 20  # of a request
REPLY_BYTES_PER_ROLLOUT = 64 << 10
MAX_NAME_LENGTH = 100


def request_body(rollouts: Sequence[Rollout]) -> bytes:
    items = [
        {
            "prompt_id": rollout.prompt.id,
            "sample": rollout.sample,
            "messages": [
                {
                    "role": each.role,
                    "content": each.content,
                    **({"extra": each.extra} if each.extra else {}),
                }
                for each in rollout.prompt.messages
            ],
            "completion": rollout.text,
            "answer": rollout.prompt.answer,
            "info": dict(rollout.prompt.info),
            "tokens": rollout.length,
        }
        for rollout in rollouts
    ]
    try:
        return json.dumps({"rollouts": items}, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"a prompt's info cannot be sent as JSON ({error}); keep plain data in Prompt.info"
        ) from error


def read_scores(body: bytes, count: int) -> list[Score]:
    """The scores of a reply; ValueError unless there are `count`."""
    scores = parse_json_object(body).get("scores")
    if not isinstance(scores, list):
        raise ValueError("the reply has no list of scores")
    if len(scores) != count:
        raise ValueError(f"{len(scores)} scores for {count} rollouts")
    for score in scores:
        parts = score if isinstance(score, dict) else {"score": score}
        if not parts or not all(map(_is_name, parts)) or not all(map(_is_number, parts.values())):
            raise ValueError(
                f"a score is {str(score)[:60]!r}; scores are finite numbers, null, or named parts"
            )
    return scores


def read_items(body: bytes) -> list[tuple[list[Mapping[str, str]], str]]:
    """(messages, completion) of each rollout in a request; ValueError if malformed."""
    items = parse_json_object(body).get("rollouts")
    if not isinstance(items, list):
        raise ValueError("the request has no list of rollouts")
    parsed = []
    for item in items:
        messages = item.get("messages") if isinstance(item, dict) else None
        if not isinstance(messages, list) or not messages or not _is_text(item.get("completion")):
            raise ValueError(
                "a rollout needs messages (a list that is not empty) and a completion (text)"
            )
        for each in messages:
            texts = (
                [each.get("role"), each.get("content"), each.get("extra", "")]
                if isinstance(each, dict)
                else [None]
            )
            if not all(map(_is_text, texts)):
                raise ValueError("a message needs a role and a content, both of them text")
            if each.get("extra"):
                parse_json_object(each["extra"].encode())
        parsed.append((messages, item["completion"]))
    return parsed


def _is_text(value: object) -> bool:
    """Text that can be encoded: JSON can hold half of a surrogate pair."""
    return isinstance(value, str) and not any("\ud800" <= each <= "\udfff" for each in value)


def _is_name(value: str) -> bool:
    return 0 < len(value) <= MAX_NAME_LENGTH and value.isprintable()


def _is_number(value: object) -> bool:
    """None is unscored; an integer may exceed the range of a float."""
    if value is None or isinstance(value, bool):
        return value is None
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max
