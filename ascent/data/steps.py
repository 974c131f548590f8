"""Where the steps of an answer end: the one rule for the data of a process reward model and for what it judges later.

Steps are joined by a separator. A step ends behind its separator, the last one with the answer itself. A stretch that
holds nothing but white space is no step: a blank line adds none, and neither does a separator at the very end. A model
reads the steps alone, joined as in its training: it never met a blank line, so blank lines must not sway it.

With the separator "\\n": "3\\n11" has steps that end at 2 and with the answer; so has "3\\n\\n11\\n", read as "3\\n11".
"""

from __future__ import annotations

from collections.abc import Sequence

from ascent.data.errors import RowError

SEPARATOR = "\n"


def step_ends(text: str, separator: str) -> tuple[int, ...]:
    """How many characters are written when each step has ended; the last one's is one more than the text has.

    None for a text that holds nothing but white space.
    """
    ends, at = [], 0
    for piece in text.split(separator):
        at += len(piece) + len(separator)
        if piece.strip():
            ends.append(at)
    return (*ends[:-1], len(text) + 1) if ends else ()


def without_blanks(text: str, separator: str) -> str:
    """The steps of an answer, joined again. They are those of the answer: a separator is found where it was."""
    return separator.join(piece for piece in text.split(separator) if piece.strip())


def joined(steps: Sequence[str], separator: str) -> str:
    """The answer that these steps are; RowError where it would be split otherwise than it was judged."""
    blank = next((place for place, step in enumerate(steps) if not step.strip()), None)
    if blank is not None:
        raise RowError("empty", f"step {blank} holds no text, so no answer would be split there; leave it out")
    text = separator.join(steps)
    if text.split(separator) != list(steps):
        place = next((place for place, step in enumerate(steps) if separator in step), None)
        where = "two steps meet in it" if place is None else f"step {place} holds it"
        raise RowError(
            "type",
            f"steps are joined by {separator!r}, and {where}, so an answer would be split otherwise than these steps "
            "are judged; set data.step_separator to a text that no step holds",
        )
    return text
