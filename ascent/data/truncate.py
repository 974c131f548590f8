"""Prompts that are too long lose whole paragraphs from their end; characters go only when no paragraph is left to drop.

A paragraph ends at a line end. What must stay at the very end ("TL;DR:") is given as `keep_end` and is not counted as
part of the text that can be cut. Cutting ids instead would leave half words and could cut the question's closing words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ascent.records import Message


class Truncation(NamedTuple):
    """The text that fits, and what it cost."""

    text: str
    paragraphs: int
    characters: int


def fit(text: str, fits: Callable[[str], bool], *, keep_end: str = "") -> Truncation:
    """The longest beginning of `text` that fits by whole paragraphs, or else by characters."""
    if keep_end and not text.endswith(keep_end):
        raise ValueError(f"keep_end={keep_end!r}, but the text ends with {text[-len(keep_end) :]!r}")
    body = text[: len(text) - len(keep_end)]
    if fits(body + keep_end):
        return Truncation(text, 0, 0)
    body = body.strip("\n")
    dropped = 0
    while not fits(body + keep_end) and "\n" in body:
        body = body.rpartition("\n")[0].rstrip("\n")
        dropped += 1
    if fits(body + keep_end):
        return Truncation(body + keep_end, dropped, 0)
    low = _longest(body, lambda part: fits(part + keep_end))
    if low == 0:
        raise ValueError(f"not even one character of {text[:40]!r} fits; raise the limit of prompt tokens")
    return Truncation(body[:low] + keep_end, dropped, len(body) - low)


def fit_messages(
    messages: Sequence[Message], fits: Callable[[Sequence[Message]], bool], *, keep_end: str = ""
) -> tuple[tuple[Message, ...], Truncation]:
    """Cut the last user message, which holds the query; system and earlier turns stay as they are."""
    places = [place for place, message in enumerate(messages) if message.role == "user"]
    if not places:
        raise ValueError("a prompt without a user message has no query that could be cut; shorten it by hand")
    place = places[-1]

    def with_query(text: str) -> tuple[Message, ...]:
        return (*messages[:place], replace(messages[place], content=text), *messages[place + 1 :])

    query = messages[place].content
    end = keep_end if keep_end and query.endswith(keep_end) else ""
    cut = fit(query, lambda text: fits(with_query(text)), keep_end=end)
    return with_query(cut.text), cut


def _longest(text: str, fits: Callable[[str], bool]) -> int:
    """How many characters of the beginning fit, by bisection; what it returns was tried and fits."""
    low, high = 0, len(text)
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(text[:middle]) else (low, middle)
    return low
