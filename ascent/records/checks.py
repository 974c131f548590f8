"""Checks that records share. Each raises a ValueError with the value, the rule and the fix."""

from __future__ import annotations

import math
from typing import Any

# A log-probability is at most 0; float32 rounding of log-softmax can leave it slightly above.
ROUNDING = 1e-4


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}, but it must be one of {', '.join(allowed)}")


def not_empty(name: str, items: tuple[Any, ...], fix: str) -> None:
    if not items:
        raise ValueError(f"{name} is empty; {fix}")


def one_per_token(owner: str, name: str, length: int, tokens: int) -> None:
    if length != tokens:
        raise ValueError(
            f"{owner} has {tokens} tokens but {length} {name}; give one entry per sampled token"
        )


def valid_logprobs(owner: str, name: str, values: tuple[float, ...]) -> None:
    # Loops in C, because there are many tokens. A NaN is allowed; where it comes first, both are NaN.
    if not values or (min(values) > -math.inf and max(values) <= ROUNDING):
        return
    if (
        bad := next((value for value in values if value > ROUNDING or value == -math.inf), None)
    ) is not None:
        raise ValueError(
            f"{owner}.{name} holds {bad}; the log of a probability above 0 is finite and at most 0"
        )


def finite_or_nan(name: str, value: float | None) -> None:
    if value is not None and math.isinf(value):
        raise ValueError(
            f"{name}={value}, but a reward is finite; return None for what cannot be scored"
        )


def distinct_answers(owner: str, answers: tuple[tuple[Any, ...], ...]) -> None:
    for answer in answers:
        not_empty(f"an answer of {owner}", answer, "drop the record, or give the answer's messages")
    if len(set(answers)) != len(answers):
        raise ValueError(
            f"{owner} holds the same answer twice, which carries no preference; drop the record"
        )
