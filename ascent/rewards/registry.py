"""Rewards by name: a built-in, an entry point of another package, or `file.py:function`. No torch.

A reward is a function of one rollout (`def` or `async def`), a function of many marked `@batched`, or a class. Its
keyword-only parameters are its options; a class takes them when it is made. `find("format", pattern=...)` binds them
and refuses what does not fit, before anything is scored.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from ascent.own_files import names_in
from ascent.protocols import Score
from ascent.records import Rollout
from ascent.rewards.outcome import Unscored

GROUP = "ascent.rewards"
# name -> where it lives; imported when asked for.
BUILT_IN = {
    "exact": "text:exact",
    "format": "text:Format",
    "length": "text:length",
    "cosine_length": "text:CosineLength",
    "overlong": "text:overlong",
    "repetition": "text:repetition",
    "mathematics": "mathematics:Mathematics",
    "programs": "programs:Programs",
    "remote": "remote:Remote",
    "judge": "judge:Judge",
}

One = Callable[[Rollout], Score | Awaitable[Score]]


class Batch(ABC):
    """A reward that scores many rollouts in one call. Where it cannot judge, an Unscored stands in the list."""

    # What its parts count unless a recipe says otherwise; a part that is not named here counts 1.
    weights: dict[str, float] = {}  # noqa: RUF012 - replaced, never changed

    @abstractmethod
    def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score | Unscored]: ...

    def close(self) -> None:
        """Give back what the reward holds: processes, connections."""
        return None


class _BatchFunction(Batch):
    def __init__(self, function: Callable[..., Sequence[Score | Unscored]]) -> None:
        self.function = function

    def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score | Unscored]:
        return self.function(rollouts)


def batched(function: Callable[..., Sequence[Score | Unscored]]) -> _BatchFunction:
    """Marks a function of a list of rollouts that returns a score for each."""
    return _BatchFunction(function)


Reward = One | Batch


def find(use: str, **options: Any) -> Reward:
    """The reward of that name with its options bound; ValueError when there is none, or they do not fit."""
    target = _target(use)
    if isinstance(target, _BatchFunction):
        return _BatchFunction(_bound(use, target.function, options))
    if isinstance(target, type):
        _check_options(use, target, options, skip=0)
        made = target(**options)
        if not isinstance(made, Batch) and not callable(made):
            raise ValueError(f"reward {use}: {target.__name__} is neither a Batch nor callable; give it __call__")
        return made
    if isinstance(target, Batch):
        if options:
            raise ValueError(f"reward {use} is already made and takes no options, but got {', '.join(options)}")
        return target
    if not callable(target):
        raise ValueError(f"reward {use} is a {type(target).__name__}, not a function or a class")
    return _bound(use, target, options)


def _target(use: str) -> Any:
    if use in BUILT_IN:
        module, _, name = BUILT_IN[use].partition(":")
        return getattr(importlib.import_module(f"ascent.rewards.{module}"), name)
    if ".py:" in use:
        return _from_file(use)
    found = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    if use in found:
        return found[use].load()
    near = difflib.get_close_matches(use, [*BUILT_IN, *found], n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join([*BUILT_IN, *found])}"
    raise ValueError(f"no reward named {use!r}; {hint} Your own is written file.py:function")


def _from_file(use: str) -> Any:
    file, _, name = use.rpartition(":")
    path = Path(file)
    names = names_in(f"reward {use}", path)
    if name not in names:
        own = [each for each, value in names.items() if callable(value) and not each.startswith("_")]
        raise ValueError(f"reward {use}: {path.name} defines no {name}; it defines {', '.join(own) or 'nothing'}")
    return names[name]


def _bound(use: str, function: Callable[..., Any], options: dict[str, Any]) -> Callable[[Any], Any]:
    _check_options(use, function, options, skip=1)
    return functools.partial(function, **options) if options else function


def _check_options(use: str, target: Callable[..., Any], options: dict[str, Any], *, skip: int) -> None:
    """Exactly `skip` positional parameters, and options among the keyword-only ones, none of them missing."""
    parameters = list(inspect.signature(target).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keyword = {p.name: p for p in parameters if p.kind == p.KEYWORD_ONLY}
    if skip and len([p for p in positional if p.default is p.empty]) != skip:
        raise ValueError(
            f"reward {use} takes {len(positional)} positional parameters, but it is called with one: the rollout "
            "(a list of them if @batched); make the others keyword-only"
        )
    unknown = [name for name in options if name not in keyword]
    if unknown:
        raise ValueError(f"reward {use} has no option {unknown[0]}; it has {', '.join(keyword) or 'none'}")
    missing = [p.name for p in keyword.values() if p.default is p.empty and p.name not in options]
    if missing:
        raise ValueError(f"reward {use} needs the option {missing[0]}")
