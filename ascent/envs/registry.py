"""Environments by name: a built-in, an entry point of another package (group `ascent.envs`), or `file.py:NAME`.

An environment is written as a function of a prompt that returns an `Env` (two methods, `first` and `reply`), with
keyword-only parameters as its options; or as a class that takes the options when it is made, is called with a prompt,
and may hold what all of a run's environments share. `find("tools", tools=["calculator"])` refuses what does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ascent.plugins import check_options, find_target
from ascent.protocols import Env
from ascent.records import Prompt

# name -> where it lives; imported when asked for.
BUILT_IN = {
    "single_turn": "ascent.envs.single_turn:SingleTurn",
    "tools": "ascent.envs.tools:Tools",
    "maze": "ascent.envs.games:Maze",
    "twenty_questions": "ascent.envs.games:TwentyQuestions",
}


@runtime_checkable
class Closes(Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True)
class Family:
    """All environments of a run: one for each rollout, made from its prompt. `close` gives back what they share."""

    name: str
    make: Callable[[Prompt], Env]
    close: Callable[[], None] = lambda: None

    def __call__(self, prompt: Prompt) -> Env:
        return self.make(prompt)


def find(use: str, **options: Any) -> Family:
    """The environments of that name with their options bound; ValueError when there are none, or they do not fit."""
    target = find_target("env", use, BUILT_IN)
    if isinstance(target, type):
        check_options(f"env {use}", target, options)
        made = target(**options)
        if not callable(made):
            raise ValueError(
                f"env {use}: {target.__name__} cannot be called with a prompt; give it __call__(self, prompt), which "
                "returns an environment"
            )
        make: Callable[[Prompt], Env] = made
        return Family(use, make, made.close) if isinstance(made, Closes) else Family(use, make)
    if not callable(target):
        raise ValueError(f"env {use} is a {type(target).__name__}, not a function or a class")
    check_options(f"env {use}", target, options, called_with="the prompt")
    return Family(use, lambda prompt: target(prompt, **options))
