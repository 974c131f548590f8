"""A cell of the table: a pure function together with the numbers it is used with.

A pure function takes its inputs as positional parameters, named from one vocabulary (`logprobs_T`, `groups`,
`values_T`, ...), and its numbers as keyword-only parameters. So a cell knows its inputs and what can be configured; its
caller passes everything there is, and the cell picks by name.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ascent.parameter_ranges import (
    Number,
    Rule,
    check_number,
    check_order,
    number_rules,
    rare_numbers,
)

R = TypeVar("R")


@dataclass(frozen=True)
class Cell:
    """One choice in one slot of an algorithm. `weight` multiplies the cell's term where it is a term of the loss."""

    function: Callable[..., Any]
    numbers: Mapping[str, Number] = field(default_factory=dict)
    weight: float = 1.0

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the function's inputs, in order, optional ones included."""
        return tuple(p.name for p in _positional(self.function))

    @property
    def required(self) -> tuple[str, ...]:
        """The names of the inputs without a default."""
        return tuple(
            p.name for p in _positional(self.function) if p.default is inspect.Parameter.empty
        )

    @property
    def statistics(self) -> dict[str, Cell]:
        """Inputs that are statistics of the whole optimizer step, and the cells that compute them."""
        found = {}
        for name, statistic in _statistics(self.function).items():
            own = {number: self.numbers[number] for number in number_rules(statistic)}
            found[name] = Cell(statistic, own)
        return found

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").split("\n")[0]

    def __call__(self, available: Mapping[str, Any]) -> Any:
        missing = [name for name in self.required if name not in available]
        if missing:
            raise KeyError(
                f"{self.name} needs {', '.join(missing)}; this batch has {', '.join(sorted(available))}"
            )
        given = {name: available[name] for name in self.inputs if name in available}
        own = number_rules(self.function)
        return self.function(
            **given, **{name: value for name, value in self.numbers.items() if name in own}
        )


def cell(function: Callable[..., Any], *, weight: float = 1.0, **numbers: Number) -> Cell:
    """A checked cell: unknown, missing or out-of-range numbers raise ValueError now, not at the first step."""
    rules = cell_numbers(function)
    for name in numbers:
        if name not in rules:
            raise ValueError(f"{function.__name__} has no number {name!r}; {nearest(name, rules)}")
    complete: dict[str, Number] = {}
    for name, (kind, bound, default) in rules.items():
        value = numbers.get(name, default)
        if value is inspect.Parameter.empty:
            raise ValueError(f"{function.__name__} needs a value for {name}")
        check_number(function.__name__, name, value, kind, bound)
        complete[name] = value
    check_order(function, complete)
    if not weight >= 0:
        raise ValueError(
            f"{function.__name__}: weight={weight!r}, but a term's weight must be at least 0"
        )
    return Cell(function, complete, weight)


def step_statistic(
    **statistics: Callable[..., Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """State that an input of a function is a statistic of the whole optimizer step, and which function computes it.

    The statistic is a pure function of the same kind, called once per optimizer step without gradient; its numbers
    become numbers of the cell. A result whose name ends in _T or _B is split like the batch. A statistic that takes an
    input of its own name is persistent: it gets its last value back (docs/decisions/0011).
    """

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__dict__["statistics"] = statistics
        return function

    return mark


def from_inputs(bundle: Callable[..., Any]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """State that a function's first parameter is a `bundle`, built from inputs that several functions share.

    Callers pass the parameters of `bundle` in its place.
    """
    shared = list(inspect.signature(bundle).parameters.values())

    def wrap(function: Callable[..., R]) -> Callable[..., R]:
        rest = list(inspect.signature(function).parameters.values())[1:]
        signature = inspect.Signature([*shared, *rest])

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> R:
            given = signature.bind(*args, **kwargs).arguments
            first = bundle(
                **{each.name: given.pop(each.name) for each in shared if each.name in given}
            )
            return function(first, **given)

        call.__dict__["__signature__"] = signature
        return call

    return wrap


def cell_numbers(function: Callable[..., Any]) -> dict[str, tuple[type, Rule | None, Any]]:
    """Every number of a cell with this function, its statistics' included: type, range, default (or `empty`)."""
    found: dict[str, tuple[type, Rule | None, Any]] = {}
    for each in (function, *_statistics(function).values()):
        parameters = inspect.signature(each).parameters
        for name, (kind, bound) in number_rules(each).items():
            found.setdefault(name, (kind, bound, parameters[name].default))
    return found


def recipe_numbers(function: Callable[..., Any]) -> dict[str, tuple[type, Rule | None, Any]]:
    """Those of `cell_numbers` that a recipe may set."""
    rare = {
        name for each in (function, *_statistics(function).values()) for name in rare_numbers(each)
    }
    return {name: rule for name, rule in cell_numbers(function).items() if name not in rare}


def nearest(name: str, known: Any) -> str:
    """'did you mean ...' for an unknown name, or the whole (short) list when nothing is close."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "known: " + (", ".join(sorted(known)) or "none")


def _statistics(function: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = function.__dict__.get("statistics", {})
    return found


@functools.cache  # it is called thousands of times while a recipe is checked
def _positional(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p for p in inspect.signature(function).parameters.values() if p.kind in kinds)
