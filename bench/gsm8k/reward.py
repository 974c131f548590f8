"""The reward of the study: 1 for the right number after the last "####", else 0. Ours and TRL's call the same function.

A stricter rule than the library's `mathematics`: it takes a microsecond, and TRL's process gets no library of ours to
wait for.
"""

from __future__ import annotations

import re
from typing import Any

NUMBER = re.compile(r"-?[\d,]*\.?\d+")


def final_number(text: str) -> float | None:
    """The number after the last "####"."""
    _, mark, rest = text.rpartition("####")
    found = NUMBER.search(rest) if mark else None
    return None if found is None else float(found.group().replace(",", ""))


def is_correct(text: str, answer: str) -> float:
    return float(final_number(text) == float(answer))


def correct(rollout: Any) -> float:
    """The reward of a recipe."""
    return is_correct(rollout.text, rollout.prompt.answer)


def trl_correct(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """The reward of TRL's GRPOTrainer."""
    texts = [each if isinstance(each, str) else each[0]["content"] for each in completions]
    return [is_correct(text, number) for text, number in zip(texts, answer, strict=True)]
