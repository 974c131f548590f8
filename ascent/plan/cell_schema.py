"""The table's vocabulary as plain words and numbers, for whoever must not import the table (config, docs)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from ascent.algorithms import VOCABULARY
from ascent.cells import recipe_numbers
from ascent.parameter_ranges import OneOf, Rule

JSON_TYPES = {float: "number", int: "integer", bool: "boolean", str: "string"}
LIMITS = {
    "at_least": "minimum",
    "at_most": "maximum",
    "above": "exclusiveMinimum",
    "below": "exclusiveMaximum",
}


def cell_schema() -> dict[str, dict[str, dict[str, Any]]]:
    """slot -> function -> {"description": its first line, "numbers": {name: JSON Schema of the number}}."""
    return {
        slot: {name: _function(each) for name, each in known.items()}
        for slot, known in VOCABULARY.items()
    }


def _function(function: Callable[..., Any]) -> dict[str, Any]:
    numbers: dict[str, dict[str, Any]] = {}
    for name, (kind, bound, default) in recipe_numbers(function).items():
        numbers[name] = {"type": JSON_TYPES[kind]} | _limits(bound)
        if default is not inspect.Parameter.empty:
            numbers[name]["default"] = default
    return {"description": (inspect.getdoc(function) or "").split("\n")[0], "numbers": numbers}


def _limits(bound: Rule | None) -> dict[str, Any]:
    if bound is None:
        return {}
    if isinstance(bound, OneOf):
        return {"enum": list(bound.words)}
    found = {word: getattr(bound, name) for name, word in LIMITS.items()}
    return {word: value for word, value in found.items() if math.isfinite(value)}
