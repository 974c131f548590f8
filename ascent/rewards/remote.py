"""Rewards from a server over HTTP, in the format of wire.py. Failures of the server are unscored, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ascent.http_client import (
    TRANSIENT,
    Client,
    RetryPolicy,
    ServerFailed,
    parse_json_object,
    validate_token,
)
from ascent.protocols import Score
from ascent.records import Rollout
from ascent.rewards.outcome import Unscored
from ascent.rewards.registry import Batch
from ascent.rewards.wire import REPLY_BYTES_PER_ROLLOUT, read_scores, request_body

# Scoring is idempotent, so a request is retried after any transient failure.
RETRY_KINDS = TRANSIENT | {"server_timeout", "bad_reply"}
MIN_REPLY_BYTES = 1 << 20


class Remote(Batch):
    """`batch` rollouts per request, `at_once` requests in flight. The token is read from a file, so it is in no recipe
    and no run folder."""

    def __init__(
        self,
        *,
        url: str,
        token_file: str | None = None,
        batch: int = 32,
        at_once: int = 4,
        retry: Mapping[str, float] | None = None,
    ) -> None:
        if batch < 1 or at_once < 1:
            raise ValueError(
                f"remote: batch={batch}, at_once={at_once}, but both must be at least 1"
            )
        self.client = create_client(
            url, token_file, retry, reply_bytes=batch * REPLY_BYTES_PER_ROLLOUT
        )
        self.batch_size, self.concurrency = batch, at_once

    def check_server(self) -> None:
        """ValueError if the server does not answer. Called before the first step."""
        try:
            self.client.get("/health", parse_json_object)
        except ServerFailed as error:
            raise ValueError(
                f"the reward server at {self.client.url} does not answer: {error}"
            ) from error

    def score(self, rollouts: Sequence[Rollout]) -> list[Score | Unscored]:
        batches = [
            rollouts[start : start + self.batch_size]
            for start in range(0, len(rollouts), self.batch_size)
        ]
        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="remote") as threads:
            return [score for scores in threads.map(self._score_batch, batches) for score in scores]

    def _score_batch(self, rollouts: Sequence[Rollout]) -> list[Score | Unscored]:
        body = request_body(rollouts)
        try:
            scores = self.client.post("/score", body, lambda data: read_scores(data, len(rollouts)))
        except ServerFailed as failure:
            return [Unscored(failure.kind, failure.detail)] * len(rollouts)
        return [
            Unscored("server_cannot_say", "the server sent null") if score is None else score
            for score in scores
        ]


def create_client(
    url: str,
    token_file: str | None,
    retry: Mapping[str, float] | None,
    *,
    reply_bytes: int = MIN_REPLY_BYTES,
) -> Client:
    """The client of a reward or a judge, from its options."""
    options = {
        "timeout": 30.0,
        "tries": 3,
        "trip": 5,
        "max_reply_bytes": max(reply_bytes, MIN_REPLY_BYTES),
    }
    try:
        policy = RetryPolicy(**{**options, **(retry or {})})  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(f"retry={retry!r}: {error}") from error
    return Client(url, token=read_token(token_file), retry=policy, retry_on=RETRY_KINDS)


def read_token(file: str | None) -> str | None:
    """The token in a file."""
    if file is None:
        return None
    path = Path(file).expanduser()
    if not path.is_file():
        raise ValueError(f"token_file={file}: there is no such file")
    try:
        with path.open("rb") as handle:
            text = handle.read(1 << 16).decode("ascii").strip()
    except OSError as error:
        raise ValueError(f"token_file={file}: it cannot be read ({error.strerror})") from error
    except UnicodeDecodeError:  # its message would quote the token
        text = ""
    return validate_token(text, f"token_file={file}: what it holds")
