"""Rollouts for tests of rewards."""

from collections.abc import Mapping
from typing import Any

from ascent.records import Completion, Message, Prompt, Rollout, Turn


def rollout(
    text: str = "",
    *,
    answer: str | None = None,
    tokens: int = 4,
    name: str = "p",
    sample: int = 0,
    info: Mapping[str, Any] | None = None,
) -> Rollout:
    prompt = Prompt(name, (Message("user", "a question"),), answer, info or {})
    completion = Completion(name, sample, (5,) * tokens, (-0.5,) * tokens, (0,) * tokens, "eos")
    return Rollout(prompt, sample, (Turn((1, 2), completion, text),))
