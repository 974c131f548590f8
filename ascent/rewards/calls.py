"""Call rewards as rollouts arrive: sync, async or batched, in parallel, each call with a time-out.

Batches are formed by rollout index, not by arrival. So scoring during sampling gives the same as scoring afterwards,
which is the same code (`score_all`).

A Python function that hangs cannot be stopped, only abandoned: its thread remains, and its rollout counts as `timeout`.
After MAX_ABANDONED of them the run stops, since each holds a thread and perhaps a lock.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from ascent.records import Rollout
from ascent.rewards.outcome import (
    OnError,
    Outcome,
    RewardFailed,
    Tally,
    Unscored,
    check_score,
    failed_outcome,
    place_of,
    shorten,
    with_expectation,
)
from ascent.rewards.placed import PlacedReward, calls_at_once
from ascent.rewards.registry import Batch, FunctionOfColumns, Reward, is_async, signature_taken
from ascent.sandbox.timeouts import BackgroundCall, error_summary

MAX_ABANDONED = 32
MAX_SHOWN = 400  # characters of a failed call's arguments
# A coroutine that blocks its event loop delays its own time-out.
GRACE_SECONDS = 1.0


@dataclass(frozen=True)
class CallOptions:
    """`timeout` is for one call: one rollout, or one batch of a batched reward."""

    timeout: float
    on_error: OnError = "bugs"

    def __post_init__(self) -> None:
        if (
            isinstance(self.timeout, bool)
            or not isinstance(self.timeout, int | float)
            or not self.timeout > 0
        ):
            raise ValueError(
                f"timeout={self.timeout}, but a reward needs some time; give seconds above 0"
            )
        if self.on_error not in get_args(OnError):
            raise ValueError(
                f"on_error={self.on_error!r}, but it must be one of {', '.join(get_args(OnError))}"
            )


class ScoringBatch:
    """Scores `count` rollouts, each added or skipped once by its index, in any order; `finish` waits for the scores."""

    def __init__(
        self, rewards: Mapping[str, Reward], options: Mapping[str, CallOptions], count: int
    ) -> None:
        self._count, self._options = count, options
        self._rollouts: dict[int, Rollout] = {}
        self._queues = {
            name: _RewardQueue(name, reward, options[name].timeout, count)
            for name, reward in rewards.items()
        }

    def add(self, index: int, rollout: Rollout) -> None:
        """Full batches are scored at once, in other threads."""
        self._rollouts[index] = rollout
        for reward_queue in self._queues.values():
            reward_queue.add(index, rollout)

    def skip(self, index: int) -> None:
        """There is no rollout at this index."""
        for reward_queue in self._queues.values():
            reward_queue.add(index, None)

    def stop(self) -> None:
        """Discard the results: threads end after their current calls."""
        for reward_queue in self._queues.values():
            reward_queue.stop()

    def num_scored(self) -> int:
        """How many rollouts the slowest reward has scored."""
        return min((reward_queue.num_scored() for reward_queue in self._queues.values()), default=0)

    def finish(self, tally: Tally | None = None) -> list[dict[str, Outcome]]:
        """For each rollout, reward name -> outcome; empty for a skipped one. Counts go to `tally`; failures that
        `on_error` does not accept raise RewardFailed."""
        counts = Tally() if tally is None else tally
        outcomes_by_reward = {
            name: reward_queue.finish() for name, reward_queue in self._queues.items()
        }
        for name, outcomes in outcomes_by_reward.items():
            for index, result in sorted(outcomes.items()):
                counts.add(name, self._rollouts[index], result, self._options[name].on_error)
        return [
            {
                name: outcomes[index]
                for name, outcomes in outcomes_by_reward.items()
                if index in outcomes
            }
            for index in range(self._count)
        ]


def score_all(
    rewards: Mapping[str, Reward],
    rollouts: Sequence[Rollout],
    *,
    timeout: float,
    on_error: OnError = "bugs",
    tally: Tally | None = None,
) -> list[dict[str, Outcome]]:
    """Score every rollout with every reward: for each rollout, reward name -> outcome."""
    scoring = ScoringBatch(
        rewards, dict.fromkeys(rewards, CallOptions(timeout, on_error)), len(rollouts)
    )
    for index, rollout in enumerate(rollouts):
        scoring.add(index, rollout)
    return scoring.finish(tally)


class _RewardQueue:
    """One reward's calls: batches of rollouts by index, each called once it is complete."""

    def __init__(self, name: str, reward: Reward, timeout: float, count: int) -> None:
        self.name, self.reward = name, reward
        self.timeout = max(timeout, reward.max_seconds) if isinstance(reward, Batch) else timeout
        size = (reward.batch_size or count) if isinstance(reward, Batch) else 1
        self._size, self._count = max(size, 1), count
        self._batches: dict[int, dict[int, Rollout | None]] = {}
        self._outcomes_by_index: dict[int, Outcome] = {}
        self._error: BaseException | None = None
        self._jobs: queue.SimpleQueue[dict[int, Rollout] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._max_threads = calls_at_once(reward)

    def add(self, index: int, rollout: Rollout | None) -> None:
        first = index - index % self._size
        batch = self._batches.setdefault(first, {})
        batch[index] = rollout
        if len(batch) < min(self._size, self._count - first):
            return
        job = {
            each: rollout
            for each, rollout in sorted(self._batches.pop(first).items())
            if rollout is not None
        }
        if job:
            self._jobs.put(job)
            if len(self._threads) < self._max_threads:
                self._threads.append(
                    threading.Thread(target=self._work, daemon=True, name=f"scoring-{self.name}")
                )
                self._threads[-1].start()

    def stop(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)

    def num_scored(self) -> int:
        return len(self._outcomes_by_index)

    def finish(self) -> dict[int, Outcome]:
        assert not self._batches, (
            f"reward {self.name}: batches {sorted(self._batches)} are incomplete"
        )
        self.stop()
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error
        return self._outcomes_by_index

    def _work(self) -> None:
        """Make one call after the other. None takes longer than its time-out."""
        while (job := self._jobs.get()) is not None and self._error is None:
            try:
                outcomes = call_reward(self.name, self.reward, list(job.values()), self.timeout)
            except BaseException as error:  # raised again in finish()
                self._error = error
                return
            self._outcomes_by_index.update(zip(job, outcomes, strict=True))


def call_reward(
    name: str, reward: Reward, rollouts: Sequence[Rollout], timeout: float
) -> list[Outcome]:
    """One call. A coroutine is awaited, whoever returns it."""
    if isinstance(reward, PlacedReward):
        return reward.outcomes(rollouts, timeout)

    def call() -> Any:
        given = [replace(each, prompt=each.prompt.copy()) for each in rollouts]
        return _await(
            reward.score(given) if isinstance(reward, Batch) else reward(given[0]), timeout
        )

    box = BackgroundCall(call, name=f"reward-{name}")
    failure = None
    if not box.wait(timeout + (GRACE_SECONDS if is_async(reward) else 0.0)):
        _abandon(name)
        failure = failed_outcome(
            "timeout", f"no score within {timeout:g} s; its `timeout` is for one call"
        )
    elif isinstance(box.error, Unscored):
        failure = failed_outcome(box.error.kind, box.error.detail)
    elif box.error is not None:
        failure = failed_outcome("raised", describe_error(box.error, reward, rollouts))
    if failure is not None:
        return [failure] * len(rollouts)
    found = (
        _of_batch(box.value, rollouts)
        if isinstance(reward, Batch)
        else [check_score(box.value, rollouts[0])]
    )
    taken = signature_taken(reward)
    return [with_expectation(each, taken.returns) if taken is not None else each for each in found]


def _await(value: Any, timeout: float) -> Any:
    if not inspect.isawaitable(value):
        return value
    try:
        return asyncio.run(asyncio.wait_for(value, timeout))
    except TimeoutError:
        raise Unscored(
            "timeout", f"no score within {timeout:g} s; its `timeout` is for one call"
        ) from None


def _of_batch(scores: Any, rollouts: Sequence[Rollout]) -> list[Outcome]:
    if isinstance(scores, str | bytes | Mapping) or not isinstance(scores, Sequence):
        return [
            failed_outcome("wrong_type", f"a batch returned a {type(scores).__name__}, not a list")
        ] * len(rollouts)
    if len(scores) != len(rollouts):
        detail = f"a batch returned {len(scores)} scores for {len(rollouts)} rollouts"
        return [failed_outcome("wrong_count", detail)] * len(rollouts)
    return [check_score(score, rollout) for score, rollout in zip(scores, rollouts, strict=True)]


def describe_error(error: BaseException, reward: Reward, rollouts: Sequence[Rollout]) -> str:
    """An exception with its place in the reward's file and the arguments of the call, shortened."""
    if isinstance(reward, FunctionOfColumns):
        arguments = reward.call.arguments(rollouts)
    else:
        owner = "rollouts[0]" if isinstance(reward, Batch) else "rollout"
        arguments = {
            f"{owner}.text": rollouts[0].text,
            f"{owner}.prompt.answer": rollouts[0].prompt.answer,
        }
    shown = ", ".join(f"{name}={shorten(value)}" for name, value in arguments.items())
    return f"{error_summary(error)}{place_of(error)}; called with {shown[:MAX_SHOWN]}"


_abandoned: dict[str, int] = {}
_abandoned_lock = threading.Lock()


def _abandon(name: str) -> None:
    with _abandoned_lock:
        times = _abandoned[name] = _abandoned.get(name, 0) + 1
    if times > MAX_ABANDONED:
        raise RewardFailed(
            f"reward {name} hung {times} times, and each call still holds a thread; give its own work "
            "a time-out, or serve it from a process of its own (rewards: remote)"
        )
