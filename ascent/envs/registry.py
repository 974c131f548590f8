"""Environments by name: a built-in, an entry point of another package (group `ascent.envs`), or `file.py:NAME`.

An environment is a class with the methods of `Env` (`first` and `reply`) that takes a prompt, or a function of a prompt
that returns one, with keyword-only parameters as options; or a class that takes the options, is called with a prompt,
and may hold shared resources.
`find_env("tools", tools=["calculator"])` checks the options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ascent.plugins import check_options, find_target
from ascent.protocols import Env
from ascent.records import Prompt

# name -> module:attribute, imported on use
BUILT_IN = {
    "single_turn": "ascent.envs.single_turn:SingleTurn",
    "tools": "ascent.envs.tools:Tools",
    "maze": "ascent.envs.games:Maze",
    "twenty_questions": "ascent.envs.games:TwentyQuestions",
}


@runtime_checkable
class Closeable(Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True)
class EnvFactory:
    """Makes one environment per rollout from its prompt. `close` releases what they share."""

    name: str
    make: Callable[[Prompt], Env]
    close: Callable[[], None] = lambda: None

    def __call__(self, prompt: Prompt) -> Env:
        return self.make(prompt.copy())


def find_env(use: str, **options: Any) -> EnvFactory:
    """The environment of that name with its options; ValueError for an unknown name or wrong options."""
    return bind_env(use, find_target("env", use, BUILT_IN), options)


def bind_env(use: str, target: Any, options: dict[str, Any]) -> EnvFactory:
    """An environment's class or function, called `use` in messages, with its options bound."""
    is_env = hasattr(target, "first") and hasattr(target, "reply")
    if isinstance(target, type) and not is_env:
        check_options(f"env {use}", target, options)
        factory = target(**options)
        if not callable(factory):
            raise ValueError(
                f"env {use}: {target.__name__} cannot be called with a prompt; give it __call__(self, prompt), which "
                "returns an environment"
            )
        make: Callable[[Prompt], Env] = factory
        return (
            EnvFactory(use, make, factory.close)
            if isinstance(factory, Closeable)
            else EnvFactory(use, make)
        )
    if not callable(target):
        raise ValueError(f"env {use} is a {type(target).__name__}, not a function or a class")
    check_options(f"env {use}", target, options, called_with="the prompt")
    return EnvFactory(use, lambda prompt: target(prompt, **options))
