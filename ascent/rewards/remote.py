"""Rewards from a server over HTTP; see wire.py for what is sent. What the server cannot say is unscored, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ascent.protocols import Score
from ascent.records import Rollout
from ascent.rewards.client import Client, patience_from
from ascent.rewards.outcome import Unscored
from ascent.rewards.registry import Batch
from ascent.rewards.wire import read_object, read_scores, request_body


class Remote(Batch):
    """`batch` rollouts in a request, `at_once` requests in flight. The token is read from a file, so that it stands in
    no recipe and no run folder."""

    def __init__(
        self,
        *,
        url: str,
        token_file: str | None = None,
        batch: int = 32,
        at_once: int = 4,
        patience: Mapping[str, float] | None = None,
    ) -> None:
        if batch < 1 or at_once < 1:
            raise ValueError(f"remote: batch={batch}, at_once={at_once}, but both must be at least 1")
        self.client = Client(url, token=read_token(token_file), patience=patience_from(patience or {}))
        self.together, self.at_once = batch, at_once

    def check(self) -> None:
        """ValueError when the server does not answer: to be called before the first step."""
        try:
            read_object(self.client.get("/health"))
        except (Unscored, ValueError) as error:
            raise ValueError(f"the reward server at {self.client.url} does not answer: {error}") from error

    def score(self, rollouts: Sequence[Rollout]) -> list[Score | Unscored]:
        pieces = [rollouts[place : place + self.together] for place in range(0, len(rollouts), self.together)]
        with ThreadPoolExecutor(self.at_once, thread_name_prefix="remote") as threads:
            return [score for scores in threads.map(self._piece, pieces) for score in scores]

    def _piece(self, rollouts: Sequence[Rollout]) -> list[Score | Unscored]:
        body = request_body(rollouts)
        try:
            scores = self.client.post("/score", body, lambda data: read_scores(data, len(rollouts)))
        except Unscored as failure:
            return [failure] * len(rollouts)
        return [Unscored("server_cannot_say", "the server sent null") if score is None else score for score in scores]


def read_token(file: str | None) -> str | None:
    """The first line of a token file."""
    if file is None:
        return None
    path = Path(file).expanduser()
    if not path.is_file():
        raise ValueError(f"token_file={file}: there is no such file")
    token = path.read_text().strip()
    if not token or not token.isascii() or len(token.split()) != 1:
        raise ValueError(f"token_file={file}: it must hold one word of ASCII letters and nothing else")
    return token
