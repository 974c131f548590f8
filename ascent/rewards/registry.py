"""Rewards by name: a built-in, an entry point of another package, or `file.py:function`. No torch.

A reward is a function of one rollout (`def` or `async def`), a function of many (`rollouts`, or `@batched`), a function
of TRL's or verl's signature (`ascent.rewards.signatures`), or a class. Its options are keyword-only parameters; a class
takes them in its constructor. `find("format", pattern=...)` binds and checks them before anything is scored.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ascent.plugins import check_options, find_target
from ascent.protocols import Score
from ascent.records import Prompt, Rollout
from ascent.rewards.outcome import Unscored
from ascent.rewards.signatures import OURS, OURS_BATCH, Call, Signature, signature_of

# name -> module:object, imported on use.
BUILT_IN = {
    "exact": "ascent.rewards.text:exact",
    "format": "ascent.rewards.text:Format",
    "length": "ascent.rewards.text:length",
    "cosine_length": "ascent.rewards.text:CosineLength",
    "overlong": "ascent.rewards.text:overlong",
    "repetition": "ascent.rewards.text:repetition",
    "mathematics": "ascent.rewards.mathematics:Mathematics",
    "programs": "ascent.rewards.programs:Programs",
    "remote": "ascent.rewards.remote:Remote",
    "judge": "ascent.rewards.judge:Judge",
}

# Plain functions in parallel: enough to hide waiting, few enough that computing ones do not time each other out.
MAX_THREADS = 4
# Coroutines only wait.
MAX_COROUTINES = 64
One = Callable[[Rollout], Score | Awaitable[Score]]


class Batch(ABC):
    """A reward that scores many rollouts in one call, with an Unscored where it cannot."""

    # Default weights of its parts.
    weights: dict[str, float] = {}  # noqa: RUF012 - replaced, never changed
    # The weight of parts that are not listed.
    other_weight: float = 1.0
    # Rollouts per call, neighbors by index, as soon as they arrive; 0: all, at the end.
    batch_size: int = 0
    # Concurrent calls, each in its own thread.
    concurrency: int = 1
    # Seconds that a call may take by its own limits; a shorter time-out is raised to this.
    max_seconds: float = 0.0

    def check(self, prompt: Prompt) -> None:
        """Raise Unscored if no answer to this prompt can be scored. Called before sampling."""
        return None

    @abstractmethod
    def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score | Unscored]: ...

    def close(self) -> None:
        """Release processes and connections."""
        return None


class BatchFunction(Batch):
    """A function of many rollouts."""

    signature = OURS_BATCH

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def score(self, rollouts: Sequence[Rollout]) -> Any:
        return self.function(rollouts)


class FunctionOfColumns(Batch):
    """A function of TRL's or verl's signature."""

    def __init__(self, call: Call) -> None:
        self.call, self.signature = call, call.signature
        if not self.signature.batch:
            self.batch_size, self.concurrency = 1, MAX_COROUTINES if is_async(self) else MAX_THREADS
        if self.signature.library == "verl":  # of a dict only `score` counts
            self.weights, self.other_weight = {"": 1.0, "score": 1.0}, 0.0

    def check(self, prompt: Prompt) -> None:
        self.call.check(prompt)

    def score(self, rollouts: Sequence[Rollout]) -> Any:
        return self.call(rollouts)


def batched(function: Callable[..., Any]) -> BatchFunction:
    """Decorator for a function of a list of rollouts that returns a score for each."""
    return BatchFunction(function)


Reward = One | Batch


def find(use: str, **options: Any) -> Reward:
    """The reward with its options bound; ValueError if there is none, or an option does not fit."""
    return bind(use, find_target("reward", use, BUILT_IN), options)


def check(use: str, **options: Any) -> None:
    """The errors of `find` that need no reward to be made."""
    target = find_target("reward", use, BUILT_IN)
    if isinstance(target, type):
        check_options(f"reward {use}", target, options)
    else:
        bind(use, target, options)


def bind(use: str, target: Any, options: dict[str, Any]) -> Reward:
    """A reward object, called `use` in messages, with its options bound."""
    if isinstance(target, type):
        check_options(f"reward {use}", target, options)
        made = target(**options)
        if not isinstance(made, Batch) and not callable(made):
            raise ValueError(
                f"reward {use}: {target.__name__} is neither a Batch nor callable; give it __call__"
            )
        return bind(use, made, {})
    if isinstance(target, Batch) and not isinstance(target, BatchFunction):
        if options:
            raise ValueError(
                f"reward {use} is an instance and takes no options, but got {', '.join(options)}"
            )
        return target
    if not callable(target) and not isinstance(target, BatchFunction):
        raise ValueError(f"reward {use} is a {type(target).__name__}, not a function or a class")
    function = target.function if isinstance(target, BatchFunction) else target
    signature = signature_of(f"reward {use}", function)
    if signature.library != "Ascent":
        return FunctionOfColumns(Call(f"reward {use}", function, signature, options))
    batch = signature.batch or isinstance(target, BatchFunction)
    check_options(
        f"reward {use}", function, options, called_with="the rollouts" if batch else "the rollout"
    )
    bound = functools.partial(function, **options) if options else function
    return BatchFunction(bound) if batch else bound


def signature_taken(reward: Reward) -> Signature | None:
    """How a function is called; None for a class of rewards."""
    if isinstance(reward, BatchFunction | FunctionOfColumns):
        return reward.signature
    return None if isinstance(reward, Batch) else OURS


def is_async(reward: Reward) -> bool:
    """Whether calling a reward gives a coroutine."""
    target: Any = reward.call.function if isinstance(reward, FunctionOfColumns) else reward
    target = target.function if isinstance(target, BatchFunction) else target
    target = target.func if isinstance(target, functools.partial) else target
    method = target.score if isinstance(target, Batch) else type(target).__call__
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(method)
