"""Where the steps of an answer end, for the training data of a process reward model and for what it scores later.

Steps are joined by a separator. A step ends after its separator, the last one at the end of the answer. Text of white
space alone is not a step, so blank lines and a trailing separator add none. The model reads the steps without blanks,
as in training.

With the separator "\\n", "3\\n11" has two steps: they end at 2 and at the end. So has "3\\n\\n11\\n", read as "3\\n11".
"""

from __future__ import annotations

from collections.abc import Sequence

from ascent.data.errors import RowError

SEPARATOR = "\n"


def step_ends(text: str, separator: str) -> tuple[int, ...]:
    """The character after each step; for the last step, the length of the text plus one. Empty for blank text."""
    ends, position = [], 0
    for step in text.split(separator):
        position += len(step) + len(separator)
        if step.strip():
            ends.append(position)
    return (*ends[:-1], len(text) + 1) if ends else ()


def drop_blank_steps(text: str, separator: str) -> str:
    return separator.join(step for step in text.split(separator) if step.strip())


def join_steps(steps: Sequence[str], separator: str) -> str:
    """The answer of these steps; RowError where splitting it gives other steps."""
    blank = next((index for index, step in enumerate(steps) if not step.strip()), None)
    if blank is not None:
        raise RowError(
            "empty", f"step {blank} has no text, so no answer is split there; leave it out"
        )
    text = separator.join(steps)
    if text.split(separator) != list(steps):
        index = next((index for index, step in enumerate(steps) if separator in step), None)
        where = "two steps form it together" if index is None else f"step {index} contains it"
        raise RowError(
            "type",
            f"steps are joined by {separator!r}, and {where}, so the answer would be split into other steps; set "
            "data.step_separator to a text that no step contains",
        )
    return text
