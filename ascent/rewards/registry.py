"""Rewards by name: a built-in, an entry point of another package, or `file.py:function`. No torch.

A reward is a function of one rollout (`def` or `async def`), a function of many with `@batched`, or a class. Its
options are keyword-only parameters; a class takes them in its constructor. `find("format", pattern=...)` binds and
checks them before anything is scored.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ascent.plugins import check_options, find_target
from ascent.protocols import Score
from ascent.records import Prompt, Rollout
from ascent.rewards.outcome import Unscored

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

One = Callable[[Rollout], Score | Awaitable[Score]]


class Batch(ABC):
    """A reward that scores many rollouts in one call, with an Unscored where it cannot."""

    # Default weights of its parts; 1 for parts that are not listed.
    weights: dict[str, float] = {}  # noqa: RUF012 - replaced, never changed
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


class _BatchFunction(Batch):
    def __init__(self, function: Callable[..., Sequence[Score | Unscored]]) -> None:
        self.function = function

    def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score | Unscored]:
        return self.function(rollouts)


def batched(function: Callable[..., Sequence[Score | Unscored]]) -> _BatchFunction:
    """Decorator for a function of a list of rollouts that returns a score for each."""
    return _BatchFunction(function)


Reward = One | Batch


def find(use: str, **options: Any) -> Reward:
    """The reward with its options bound; ValueError if there is none, or an option does not fit."""
    target = find_target("reward", use, BUILT_IN)
    if isinstance(target, _BatchFunction):
        return _BatchFunction(_bound(use, target.function, options))
    if isinstance(target, type):
        check_options(f"reward {use}", target, options)
        made = target(**options)
        if not isinstance(made, Batch) and not callable(made):
            raise ValueError(f"reward {use}: {target.__name__} is neither a Batch nor callable; give it __call__")
        return made
    if isinstance(target, Batch):
        if options:
            raise ValueError(f"reward {use} is an instance and takes no options, but got {', '.join(options)}")
        return target
    if not callable(target):
        raise ValueError(f"reward {use} is a {type(target).__name__}, not a function or a class")
    return _bound(use, target, options)


def _bound(use: str, function: Callable[..., Any], options: dict[str, Any]) -> Callable[[Any], Any]:
    check_options(f"reward {use}", function, options, called_with="the rollout (a list of them if @batched)")
    return functools.partial(function, **options) if options else function
