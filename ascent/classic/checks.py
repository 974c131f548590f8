"""Validation of the settings of the algorithms."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


def check(
    settings: Any,
    *,
    counts: Iterable[str] = (),
    wholes: Iterable[str] = (),
    positive: Iterable[str] = (),
    non_negative: Iterable[str] = (),
    fractions: Iterable[str] = (),
) -> None:
    """ValueError for the first field outside its range: integer >= 1, integer >= 0, > 0, >= 0, or 0 to 1."""
    owner = type(settings).__module__.rsplit(".", 1)[-1]
    rules = (
        (counts, lambda x: isinstance(x, int) and x >= 1, "a whole number, at least 1"),
        (wholes, lambda x: isinstance(x, int) and x >= 0, "a whole number, at least 0"),
        (positive, lambda x: 0 < x < math.inf, "a finite number above 0"),
        (non_negative, lambda x: 0 <= x < math.inf, "a finite number, at least 0"),
        (fractions, lambda x: 0 <= x <= 1, "between 0 and 1"),
    )
    for names, holds, words in rules:
        for name in names:
            value = getattr(settings, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not holds(value):
                raise ValueError(f"{owner}: {name}={value!r}, but it must be {words}")


def choose(settings: Any, name: str, known: Iterable[str]) -> None:
    """ValueError unless the field is one of the known names."""
    owner, words = type(settings).__module__.rsplit(".", 1)[-1], sorted(known)
    if getattr(settings, name) not in words:
        raise ValueError(
            f"{owner}: {name}={getattr(settings, name)!r}; choose one of {', '.join(words)}"
        )


def widths(settings: Any) -> None:
    """ValueError unless `hidden` lists the widths of the hidden layers."""
    if not all(isinstance(width, int) and width >= 1 for width in settings.hidden):
        raise ValueError(
            f"hidden={settings.hidden!r}; list one width >= 1 for each hidden layer, for example (64, 64)"
        )
