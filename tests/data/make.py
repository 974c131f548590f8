"""Items with given lengths, without a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np

from ascent.data.prepare import Item
from ascent.data.render import Rendered

_fresh = count(1)


def rendered(length: int, prompt: int = 1) -> Rendered:
    """Every token id is new, so that a token tells where it came from."""
    tokens = np.array([next(_fresh) for _ in range(length)], dtype=np.int32)
    return Rendered(tokens, np.arange(length) >= prompt, prompt)


def example(length: int) -> Item:
    return Item("examples", (rendered(length),))


def pair(won: int, lost: int, margin: float | None = None, gold: int | None = None) -> Item:
    lengths = (won, lost) if gold is None else (won, lost, gold)
    return Item("pairs", tuple(rendered(length) for length in lengths), margin=margin)


def ranking(lengths: Sequence[int]) -> Item:
    return Item("rankings", tuple(rendered(length) for length in lengths))


def steps(length: int, ends: Sequence[int], labels: Sequence[float | None]) -> Item:
    return Item("steps", (rendered(length),), step_ends=tuple(ends), step_labels=tuple(labels))


def unpaired(length: int, good: bool = True, prompt: int = 2) -> Item:
    return Item("unpaired", (rendered(length, prompt),), good=good)
