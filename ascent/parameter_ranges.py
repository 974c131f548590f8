"""Numbers with a stated range, checked when a function is called and, earlier, when a config names the function.

A pure function writes the rule once, in the annotation of a keyword-only number:

    @checked
    def clip(log_ratio_T, advantages_T, *, low: NonNegative, high: NonNegative): ...

`clip(..., low=-0.1, high=0.2)` then raises "clip: low=-0.1, but it must be at least 0". `ascent.cells` reads the same
annotations, so a recipe with a bad number fails before any work starts.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

Number = float | int | bool | str

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Range:
    """The rule a number must obey; `at_least` and `at_most` are inclusive, `above` and `below` are not.

    `or_zero` lets 0 pass as well, where it switches something off.
    """

    at_least: float = -math.inf
    at_most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    or_zero: bool = False

    def broken_by(self, value: float) -> str | None:
        """The broken rule in words, or None."""
        rules = (
            (value >= self.at_least, f"at least {self.at_least:g}"),
            (value <= self.at_most, f"at most {self.at_most:g}"),
            (value > self.above or self.above == -math.inf, f"above {self.above:g}"),
            (value < self.below or self.below == math.inf, f"below {self.below:g}"),
        )
        if self.or_zero and value == 0:
            return None
        return next(
            (f"{'0 or ' * self.or_zero}{words}" for holds, words in rules if not holds), None
        )


@dataclass(frozen=True)
class OneOf:
    """The words that a word may be."""

    words: tuple[str, ...]

    def broken_by(self, value: str) -> str | None:
        return None if value in self.words else "one of " + ", ".join(self.words)


Rule = Range | OneOf


class Rare:
    """Marks a number that recipes leave alone: whoever needs another one writes a row of their own (decision 0011)."""


RARE = Rare()

Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(at_least=0)]
Fraction = Annotated[float, Range(at_least=0, at_most=1)]
BelowHalf = Annotated[float, Range(at_least=0, below=0.5)]
AboveOne = Annotated[float, Range(above=1)]
Count = Annotated[int, Range(at_least=1)]


@functools.cache  # every call of a cell asks for them
def number_rules(function: Callable[..., Any]) -> Mapping[str, tuple[type, Rule | None]]:
    """For each keyword-only parameter: its plain type (float, int, bool or str) and its range, if it states one."""
    hints = get_type_hints(function, include_extras=True)
    names = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    rules: dict[str, tuple[type, Rule | None]] = {}
    for name in names:
        hint = hints.get(name, float)
        bound = next(
            (extra for extra in get_args(hint)[1:] if isinstance(extra, Range | OneOf)), None
        )
        rules[name] = (get_args(hint)[0] if get_origin(hint) is Annotated else hint, bound)
    return rules


def rare_numbers(function: Callable[..., Any]) -> set[str]:
    """The keyword-only parameters marked RARE."""
    hints = get_type_hints(function, include_extras=True)
    return {name for name in number_rules(function) if RARE in get_args(hints.get(name))}


def check_number(owner: str, name: str, value: Any, kind: type, bound: Rule | None) -> None:
    """Raise ValueError, with the value, the rule and the owner's name, when `value` is not a fitting `kind`."""
    fits = (
        isinstance(value, bool)
        if kind is bool
        else isinstance(value, str)
        if kind is str
        else is_real(value, kind)
    )
    if not fits:
        raise ValueError(
            f"{owner}: {name}={value!r}, but it must be {KIND_WORDS.get(kind, kind.__name__)}"
        )
    if (
        isinstance(value, int) and abs(value) > LARGEST_WHOLE
    ):  # no float or tensor holds it, and repr may refuse it
        raise ValueError(
            f"{owner}: {name} has about {value.bit_length() * 3 // 10} digits, but it must be within 2^63"
        )
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(f"{owner}: {name}=nan, but it must be a number")
    if bound is not None:
        broken = (
            bound.broken_by(value) if isinstance(bound, OneOf) else bound.broken_by(float(value))
        )
        if broken:
            raise ValueError(f"{owner}: {name}={value!r}, but it must be {broken}")


LARGEST_WHOLE = 2**63 - 1
KIND_WORDS = {float: "a number", int: "a whole number", bool: "true or false", str: "a word"}


def is_real(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) if kind is int else isinstance(value, int | float)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check the keyword-only numbers of `function` against their annotated ranges at every call."""
    bounded: dict[str, tuple[type, Rule]] = {
        name: (kind, bound)
        for name, (kind, bound) in number_rules(function).items()
        if bound is not None
    }

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given: Mapping[str, Any] = kwargs
        for name, (kind, bound) in bounded.items():
            if name in given:
                check_number(function.__name__, name, given[name], kind, bound)
        check_order(function, given)
        return function(*args, **kwargs)

    return call


def ordered(smaller: str, larger: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """State that one number of a function must not exceed another; put it below `checked`, which enforces it."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        function.__dict__["ordered"] = (smaller, larger)
        return function

    return mark


def check_order(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise ValueError when two numbers stand in the wrong order; a default stands in for one not given."""
    smaller, larger = function.__dict__.get("ordered", ("", ""))
    if not smaller:
        return
    parameters = inspect.signature(function).parameters
    low, high = (given.get(name, parameters[name].default) for name in (smaller, larger))
    if low > high:
        raise ValueError(
            f"{function.__name__}: {smaller}={low!r} > {larger}={high!r}, but it must not exceed it"
        )
