"""The table's vocabulary as plain words and numbers, for whoever must not import the table (config, docs)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from ascent.algorithms import VOCABULARY
from ascent.bounds import Range, number_rules

JSON_TYPES = {float: "number", int: "integer", bool: "boolean", str: "string"}
LIMITS = {"at_least": "minimum", "at_most": "maximum", "above": "exclusiveMinimum", "below": "exclusiveMaximum"}


def described() -> dict[str, dict[str, dict[str, Any]]]:
    """slot -> function -> {"description": its first line, "numbers": {name: JSON Schema of the number}}."""
    return {slot: {name: _function(each) for name, each in known.items()} for slot, known in VOCABULARY.items()}


def _function(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    numbers = {}
    for name, (kind, bound) in number_rules(function).items():
        numbers[name] = {"type": JSON_TYPES[kind]} | _limits(bound)
        if parameters[name].default is not inspect.Parameter.empty:
            numbers[name]["default"] = parameters[name].default
    return {"description": (inspect.getdoc(function) or "").split("\n")[0], "numbers": numbers}


def _limits(bound: Range | None) -> dict[str, Any]:
    if bound is None:
        return {}
    found = {word: getattr(bound, name) for name, word in LIMITS.items()}
    return {word: value for word, value in found.items() if math.isfinite(value)}
