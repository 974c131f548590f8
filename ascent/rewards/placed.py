"""Rewards that run in worker processes of a launcher, on the machines of a cluster.

Who is called with which rollouts does not depend on workers: batches are formed by rollout index, as for rewards of
this process, and each call goes to one worker. A worker that fails is left, and the call is made again by another. So a
rollout is scored as if its reward ran here.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ascent.http_client import Client, RequestGroup, RetryPolicy, ServerFailed
from ascent.progress import WaitingNotes
from ascent.protocols import Score
from ascent.records import Prompt, Rollout
from ascent.rewards.outcome import Outcome, RewardFailed, Unscored
from ascent.rewards.registry import MAX_COROUTINES, MAX_THREADS, Batch, Reward, is_async
from ascent.rewards.rollout_json import call_to_json, outcomes_from_json

MAX_FAILURES = (
    5  # different workers that failed with one call, before it is the call that is at fault
)
PATIENCE_SECONDS = 1800.0  # without any worker: a cluster may have to wait for machines
REFRESH_SECONDS = 1.0  # between two looks at which workers there are
PAUSE_SECONDS, BUSY_SECONDS = (
    2.0,
    0.1,
)  # before a worker that failed, or has enough to do, is asked again
REPLY_SECONDS = 30.0  # on top of a call's time-out, for the way there and back


def calls_at_once(reward: Reward) -> int:
    """How many calls of a reward run at once in one process."""
    if isinstance(reward, Batch):
        return reward.concurrency
    return MAX_COROUTINES if is_async(reward) else MAX_THREADS


class RewardWorkers:
    """The workers of one launch. `placed` gives the URLs of those that answer, and why there will be none; `want` asks
    the launcher for them, and may be called again."""

    def __init__(
        self,
        placed: Callable[[], tuple[Sequence[str], str]],
        want: Callable[[], None],
        *,
        key: str | None,
        count: int,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.count = count
        self._placed, self._want, self._key, self._patience = placed, want, key, patience
        self._changed, self._closed = threading.Condition(), threading.Event()
        self._groups: dict[str, RequestGroup] = {}  # by URL: the calls in flight
        self._running: Counter[tuple[str, str]] = Counter()  # by reward and URL
        self._retry_at: dict[str, float] = {}
        self._errors: dict[str, str] = {}
        self._given_up, self._started = "", False
        self._notes = WaitingNotes()

    def call(
        self, name: str, rollouts: Sequence[Rollout], timeout: float, at_once: int
    ) -> list[Outcome]:
        """One call of a reward, by any worker; RewardFailed if the run must end."""
        body = call_to_json(name, timeout, rollouts)
        retry = RetryPolicy(timeout=timeout + REPLY_SECONDS, tries=1)
        failed: dict[str, str] = {}
        while len(failed) < MAX_FAILURES:
            url, group = self._acquire(name, at_once)
            try:
                reply = Client(url, token=self._key, retry=retry).post(
                    "/score", body, json.loads, group
                )
            except ServerFailed as failure:
                failed[url] = str(failure)
                self._release(name, url, pause=PAUSE_SECONDS, error=str(failure))
                continue
            except BaseException:
                self._release(name, url)
                raise
            self._release(name, url, pause=BUSY_SECONDS if "busy" in reply else 0.0)
            if "failed" in reply:
                raise RewardFailed(reply["failed"])
            if "busy" not in reply:
                return outcomes_from_json(reply["outcomes"])
        first = rollouts[0]
        raise RewardFailed(
            f"reward {name} on prompt {first.prompt.id!r}, sample {first.sample}: {len(failed)} reward workers failed "
            f"with it, at last {url}: {failed[url]}; the logs of the workers are in the run folder"
        )

    def close(self) -> None:
        self._closed.set()
        with self._changed:
            for group in self._groups.values():
                group.cancel()
            self._changed.notify_all()

    def _acquire(self, name: str, at_once: int) -> tuple[str, RequestGroup]:
        """The worker with the fewest calls of this reward, once there is one with room."""
        with self._changed:
            if not self._started:
                self._want()
                self._started = (
                    True  # not before: if asking fails, the next call asks again instead of waiting
                )
                threading.Thread(target=self._watch, daemon=True, name="reward workers").start()
            until = time.monotonic() + self._patience
            while True:
                now = time.monotonic()
                if self._given_up or self._closed.is_set():
                    raise RewardFailed(self._given_up or f"reward {name}: the run has ended")
                usable = [url for url in self._groups if self._retry_at.get(url, 0.0) <= now]
                free = [url for url in usable if self._running[name, url] < at_once]
                if free:
                    self._notes.over("scoring goes on")
                    url = min(free, key=lambda each: self._running[name, each])
                    self._running[name, url] += 1
                    return url, self._groups[url]
                if any(self._running[name, url] for url in self._groups):
                    until = now + self._patience  # the others are at work
                else:
                    self._notes.waiting(
                        lambda since: f"no reward worker for {since}: {self._reason()}"
                    )
                if now > until:
                    raise RewardFailed(
                        f"reward {name}: no reward worker for {self._patience:g} s: {self._reason()}"
                    )
                self._changed.wait(BUSY_SECONDS)

    def _release(self, name: str, url: str, *, pause: float = 0.0, error: str = "") -> None:
        with self._changed:
            self._running[name, url] -= 1
            self._errors[url] = error
            if pause:
                self._retry_at[url] = time.monotonic() + pause
            self._changed.notify_all()

    def _watch(self) -> None:
        """See which workers there are; calls of one that is gone are made again by others."""
        while not self._closed.is_set():
            urls, error = self._placed()
            with self._changed:
                self._given_up = error
                for url in set(self._groups) - set(urls):
                    self._groups.pop(
                        url
                    ).cancel()  # a machine that is gone never answers, and never says so
                self._groups |= {url: RequestGroup() for url in urls if url not in self._groups}
                self._changed.notify_all()
            self._closed.wait(REFRESH_SECONDS)

    def _reason(self) -> str:
        errors = [f"{url}: {self._errors[url]}" for url in self._groups if self._errors.get(url)]
        return "; ".join(errors) or "none answers yet, as the launcher's messages say"


class PlacedReward(Batch):
    """A reward that the workers call. What it is, and which prompts it can score, is known from `local`."""

    def __init__(self, name: str, local: Reward, workers: RewardWorkers) -> None:
        self.name, self.local, self._workers = name, local, workers
        self._at_once = calls_at_once(local)
        self.batch_size, self.concurrency = 1, self._at_once * workers.count
        if isinstance(local, Batch):
            self.weights, self.other_weight = local.weights, local.other_weight
            self.batch_size, self.max_seconds = local.batch_size, local.max_seconds

    def check(self, prompt: Prompt) -> None:
        if isinstance(self.local, Batch):
            self.local.check(prompt)

    def outcomes(self, rollouts: Sequence[Rollout], timeout: float) -> list[Outcome]:
        """One call, with its time-out."""
        return self._workers.call(self.name, rollouts, timeout, self._at_once)

    def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score | Unscored]:
        raise NotImplementedError("a worker checks the scores, so there are outcomes only")

    def close(self) -> None:
        if isinstance(self.local, Batch):
            self.local.close()


def place(
    rewards: dict[str, Reward], names: Sequence[str], workers: RewardWorkers
) -> dict[str, Any]:
    """The rewards, those of `names` called by workers."""
    return {
        name: PlacedReward(name, each, workers) if name in names else each
        for name, each in rewards.items()
    }
