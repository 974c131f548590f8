"""Call rewards: sync, async or batched, many at once, each with a time-out. Results keep the rollouts' order.

A function that hangs cannot be stopped in Python, only abandoned: its thread stays behind, and its rollout is counted
as `timeout`. After MOST_ABANDONED of them the run stops, since every one holds a thread and perhaps a lock.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ascent.records import Rollout
from ascent.rewards.outcome import Outcome, RewardFailed, StopOn, Tally, Unscored, failed, outcome
from ascent.rewards.registry import Batch, Reward

MOST_ABANDONED = 32
# Plain functions side by side: enough to hide a wait, few enough that computing ones do not make each other late.
AT_ONCE = 4
# A coroutine that blocks its loop keeps the others from their own time-outs.
GRACE_SECONDS = 1.0


def score_all(
    rewards: Mapping[str, Reward],
    rollouts: Sequence[Rollout],
    *,
    timeout: float,
    stop_on: StopOn = "bugs",
    tally: Tally | None = None,
) -> list[dict[str, Outcome]]:
    """Every reward on every rollout: for each rollout, reward name -> outcome. `timeout` is for one rollout's call,
    or for a whole batch of a batched reward. Counts go to `tally`; what the policy refuses raises RewardFailed."""
    if not timeout > 0:
        raise ValueError(f"timeout={timeout}, but a reward needs some time; give seconds above 0")
    counts = Tally() if tally is None else tally
    found = {name: _outcomes(name, reward, rollouts, timeout) for name, reward in rewards.items()}
    for name, outcomes in found.items():
        for rollout, result in zip(rollouts, outcomes, strict=True):
            counts.add(name, rollout, result, stop_on)
    return [{name: outcomes[place] for name, outcomes in found.items()} for place in range(len(rollouts))]


def _outcomes(name: str, reward: Reward, rollouts: Sequence[Rollout], timeout: float) -> list[Outcome]:
    if not rollouts:
        return []
    if isinstance(reward, Batch):
        return _batch(name, reward, rollouts, timeout)
    return _each(name, reward, rollouts, timeout)


def _batch(name: str, reward: Batch, rollouts: Sequence[Rollout], timeout: float) -> list[Outcome]:
    box = _Box()
    _start(name, box, lambda: reward.score(rollouts))
    failure = box.wait(name, timeout)
    if failure is not None:
        return [failure] * len(rollouts)
    scores = box.value
    if isinstance(scores, str | bytes) or not isinstance(scores, Sequence):
        return [failed("wrong_type", f"a batch returned a {type(scores).__name__}, not a list")] * len(rollouts)
    if len(scores) != len(rollouts):
        detail = f"a batch returned {len(scores)} scores for {len(rollouts)} rollouts"
        return [failed("wrong_count", detail)] * len(rollouts)
    return [outcome(score, rollout) for score, rollout in zip(scores, rollouts, strict=True)]


def _each(name: str, reward: Callable[[Rollout], Any], rollouts: Sequence[Rollout], timeout: float) -> list[Outcome]:
    if _is_async(reward):
        return _coroutines(name, reward, rollouts, timeout)
    outcomes = []
    for first in range(0, len(rollouts), AT_ONCE):
        window = rollouts[first : first + AT_ONCE]
        boxes = [_Box() for _ in window]
        until = time.monotonic() + timeout
        for box, rollout in zip(boxes, window, strict=True):
            _start(name, box, functools.partial(reward, rollout))
        for box, rollout in zip(boxes, window, strict=True):
            failure = box.wait(name, max(until - time.monotonic(), 0.0))
            outcomes.append(failure or outcome(box.value, rollout))
    return outcomes


def _coroutines(
    name: str, reward: Callable[[Rollout], Any], rollouts: Sequence[Rollout], timeout: float
) -> list[Outcome]:
    found: dict[int, Any] = {}
    box = _Box()
    _start(name, box, lambda: asyncio.run(_gather(reward, rollouts, timeout, found)))
    failure = box.wait(name, timeout + GRACE_SECONDS)
    late = failure or failed("timeout", f"no score within {timeout:g} s")
    scores = [found.get(place, late) for place in range(len(rollouts))]
    return [
        score if isinstance(score, Outcome) else outcome(score, rollout)
        for score, rollout in zip(scores, rollouts, strict=True)
    ]


def _is_async(reward: Callable[..., Any]) -> bool:
    target = reward.func if isinstance(reward, functools.partial) else reward
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(type(target).__call__)


async def _gather(
    reward: Callable[[Rollout], Any], rollouts: Sequence[Rollout], timeout: float, found: dict[int, Any]
) -> None:
    async def one(place: int, rollout: Rollout) -> None:
        try:
            found[place] = await asyncio.wait_for(reward(rollout), timeout)
        except TimeoutError:
            found[place] = failed("timeout", f"no score within {timeout:g} s")
        except Unscored as error:
            found[place] = error
        except Exception as error:  # any error of a user's function is that rollout's, with a name and a count
            found[place] = failed("raised", _shown(error))

    await asyncio.gather(*(one(place, rollout) for place, rollout in enumerate(rollouts)))


class _Box:
    """Where a thread leaves what a reward returned or raised."""

    def __init__(self) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._done = threading.Event()

    def fill(self, work: Callable[[], Any]) -> None:
        try:
            self.value = work()
        except BaseException as error:  # SystemExit too: a reward must not end the run, nor look like a score
            self.error = error
        self._done.set()

    def wait(self, name: str, timeout: float) -> Outcome | None:
        """None when there is a value to look at."""
        if not self._done.wait(timeout):
            _abandon(name)
            return failed("timeout", "no score in time")
        if isinstance(self.error, Unscored):
            return failed(self.error.kind, self.error.detail)
        return failed("raised", _shown(self.error)) if self.error is not None else None


_abandoned: dict[str, int] = {}


def _abandon(name: str) -> None:
    _abandoned[name] = _abandoned.get(name, 0) + 1
    if _abandoned[name] > MOST_ABANDONED:
        raise RewardFailed(
            f"reward {name} hung {_abandoned[name]} times, and each call still holds a thread; give its own work "
            "a time-out, or serve it from a process of its own (rewards: remote)"
        )


def _start(name: str, box: _Box, work: Callable[[], Any]) -> None:
    # Daemon threads: an abandoned one must not keep the interpreter from ending. Not a thread pool: its workers would
    # be used up by the first few that hang.
    threading.Thread(target=box.fill, args=(work,), daemon=True, name=f"reward-{name}").start()


def _shown(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"
