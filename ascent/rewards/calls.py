"""Call rewards as rollouts arrive: sync, async or batched, many at once, each with a time-out.

Who is asked together, and in which place a result stands, follows from the rollouts' places alone. So scoring while
others are still being sampled gives the same as scoring when all are there, which is the same code (`score_all`).

A function that hangs cannot be stopped in Python, only abandoned: its thread stays behind, and its rollout is counted
as `timeout`. After MOST_ABANDONED of them the run stops, since every one holds a thread and perhaps a lock.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from ascent.records import Rollout
from ascent.rewards.outcome import Outcome, RewardFailed, StopOn, Tally, Unscored, failed, outcome
from ascent.rewards.registry import Batch, Reward
from ascent.sandbox.timeouts import Box, shown

MOST_ABANDONED = 32
# Plain functions side by side: enough to hide a wait, few enough that computing ones do not make each other late.
AT_ONCE = 4
# Coroutines only wait.
COROUTINES_AT_ONCE = 64
# A coroutine that blocks its loop keeps the others from their own time-outs.
GRACE_SECONDS = 1.0


@dataclass(frozen=True)
class Rule:
    """`timeout` seconds for one call: of one rollout, or of those that a batched reward gets together."""

    timeout: float
    on_error: StopOn = "bugs"

    def __post_init__(self) -> None:
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, int | float) or not self.timeout > 0:
            raise ValueError(f"timeout={self.timeout}, but a reward needs some time; give seconds above 0")
        if self.on_error not in get_args(StopOn):
            raise ValueError(f"on_error={self.on_error!r}, but it must be one of {', '.join(get_args(StopOn))}")


class Scoring:
    """`count` rollouts, each given or skipped once by its place, in any order; `finish` waits for what rewards say."""

    def __init__(self, rewards: Mapping[str, Reward], rules: Mapping[str, Rule], count: int) -> None:
        self._count, self._rules = count, rules
        self._rollouts: dict[int, Rollout] = {}
        self._lines = {name: _Line(name, reward, rules[name].timeout, count) for name, reward in rewards.items()}

    def add(self, place: int, rollout: Rollout) -> None:
        """Whoever can be scored now, is, by other threads."""
        self._rollouts[place] = rollout
        for line in self._lines.values():
            line.add(place, rollout)

    def skip(self, place: int) -> None:
        """There is nothing to score here."""
        for line in self._lines.values():
            line.add(place, None)

    def stop(self) -> None:
        """Nobody will ask for the results: threads end with the calls they are at."""
        for line in self._lines.values():
            line.stop()

    def finish(self, tally: Tally | None = None) -> list[dict[str, Outcome]]:
        """For each rollout, reward name -> outcome, and nothing for a skipped one. Counts go to `tally`; what a rule
        refuses raises RewardFailed."""
        counts = Tally() if tally is None else tally
        found = {name: line.finish() for name, line in self._lines.items()}
        for name, outcomes in found.items():
            for place, result in sorted(outcomes.items()):
                counts.add(name, self._rollouts[place], result, self._rules[name].on_error)
        return [
            {name: outcomes[place] for name, outcomes in found.items() if place in outcomes}
            for place in range(self._count)
        ]


def score_all(
    rewards: Mapping[str, Reward],
    rollouts: Sequence[Rollout],
    *,
    timeout: float,
    on_error: StopOn = "bugs",
    tally: Tally | None = None,
) -> list[dict[str, Outcome]]:
    """Every reward on every rollout, which are all there: for each rollout, reward name -> outcome."""
    scoring = Scoring(rewards, dict.fromkeys(rewards, Rule(timeout, on_error)), len(rollouts))
    for place, rollout in enumerate(rollouts):
        scoring.add(place, rollout)
    return scoring.finish(tally)


class _Line:
    """One reward's calls: pieces of rollouts, cut by place, asked as soon as all of a piece is there."""

    def __init__(self, name: str, reward: Reward, timeout: float, count: int) -> None:
        self.name, self.reward = name, reward
        self.timeout = max(timeout, reward.longest) if isinstance(reward, Batch) else timeout
        size = (reward.together or count) if isinstance(reward, Batch) else 1
        self._size, self._count = max(size, 1), count
        self._pieces: dict[int, dict[int, Rollout | None]] = {}
        self._found: dict[int, Outcome] = {}
        self._error: BaseException | None = None
        self._jobs: queue.SimpleQueue[dict[int, Rollout] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._most = reward.at_once if isinstance(reward, Batch) else AT_ONCE
        if not isinstance(reward, Batch) and _is_async(reward):
            self._most = COROUTINES_AT_ONCE

    def add(self, place: int, rollout: Rollout | None) -> None:
        first = place - place % self._size
        piece = self._pieces.setdefault(first, {})
        piece[place] = rollout
        if len(piece) < min(self._size, self._count - first):
            return
        job = {each: given for each, given in sorted(self._pieces.pop(first).items()) if given is not None}
        if job:
            self._jobs.put(job)
            if len(self._threads) < self._most:
                self._threads.append(threading.Thread(target=self._work, daemon=True, name=f"scoring-{self.name}"))
                self._threads[-1].start()

    def stop(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)

    def finish(self) -> dict[int, Outcome]:
        assert not self._pieces, f"reward {self.name}: places {sorted(self._pieces)} are not all there"
        self.stop()
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error
        return self._found

    def _work(self) -> None:
        """One call after the other. Nothing here waits longer than a call's time-out."""
        while (job := self._jobs.get()) is not None and self._error is None:
            try:
                outcomes = _outcomes(self.name, self.reward, list(job.values()), self.timeout)
            except BaseException as error:  # the run's error: it is raised where results are asked for
                self._error = error
                return
            self._found.update(zip(job, outcomes, strict=True))


def _outcomes(name: str, reward: Reward, rollouts: Sequence[Rollout], timeout: float) -> list[Outcome]:
    if isinstance(reward, Batch):
        return _batch(name, reward, rollouts, timeout)
    (rollout,) = rollouts
    if _is_async(reward):
        return [_coroutine(name, reward, rollout, timeout)]
    box = Box(functools.partial(reward, rollout), name=f"reward-{name}")
    return [_failure(box, name, timeout) or outcome(box.value, rollout)]


def _batch(name: str, reward: Batch, rollouts: Sequence[Rollout], timeout: float) -> list[Outcome]:
    box = Box(lambda: reward.score(rollouts), name=f"reward-{name}")
    failure = _failure(box, name, timeout)
    if failure is not None:
        return [failure] * len(rollouts)
    scores = box.value
    if isinstance(scores, str | bytes) or not isinstance(scores, Sequence):
        return [failed("wrong_type", f"a batch returned a {type(scores).__name__}, not a list")] * len(rollouts)
    if len(scores) != len(rollouts):
        detail = f"a batch returned {len(scores)} scores for {len(rollouts)} rollouts"
        return [failed("wrong_count", detail)] * len(rollouts)
    return [outcome(score, rollout) for score, rollout in zip(scores, rollouts, strict=True)]


def _coroutine(name: str, reward: Callable[[Rollout], Any], rollout: Rollout, timeout: float) -> Outcome:
    box = Box(lambda: asyncio.run(asyncio.wait_for(reward(rollout), timeout)), name=f"reward-{name}")
    failure = _failure(box, name, timeout + GRACE_SECONDS)
    if isinstance(box.error, TimeoutError):
        return failed("timeout", f"no score within {timeout:g} s")
    return failure or outcome(box.value, rollout)


def _is_async(reward: Callable[..., Any]) -> bool:
    target = reward.func if isinstance(reward, functools.partial) else reward
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(type(target).__call__)


def _failure(box: Box, name: str, timeout: float) -> Outcome | None:
    """None when there is a value to look at."""
    if not box.wait(timeout):
        _abandon(name)
        return failed("timeout", "no score in time")
    if isinstance(box.error, Unscored):
        return failed(box.error.kind, box.error.detail)
    return failed("raised", shown(box.error)) if box.error is not None else None


_abandoned: dict[str, int] = {}
_counting = threading.Lock()


def _abandon(name: str) -> None:
    with _counting:
        times = _abandoned[name] = _abandoned.get(name, 0) + 1
    if times > MOST_ABANDONED:
        raise RewardFailed(
            f"reward {name} hung {times} times, and each call still holds a thread; give its own work "
            "a time-out, or serve it from a process of its own (rewards: remote)"
        )
