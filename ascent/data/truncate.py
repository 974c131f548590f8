"""Truncate prompts by whole paragraphs from their end; by characters once one paragraph is left.

A paragraph ends at a line end. `keep_end` ("TL;DR:") is text that stays at the end. Truncating token ids instead would
split words and could remove the end of the question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ascent.records import Message


class Truncation(NamedTuple):
    """The text that fits, and how much was removed."""

    text: str
    paragraphs: int
    characters: int


def fit(text: str, fits: Callable[[str], bool], *, keep_end: str = "") -> Truncation:
    """The longest beginning of `text` that fits by whole paragraphs, or else by characters."""
    if keep_end and not text.endswith(keep_end):
        raise ValueError(
            f"keep_end={keep_end!r}, but the text ends with {text[-len(keep_end) :]!r}"
        )
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
    length = _longest_fit(body, lambda part: fits(part + keep_end))
    if length == 0:
        raise ValueError(
            f"not even one character of {text[:40]!r} fits; raise the limit of prompt tokens"
        )
    return Truncation(body[:length] + keep_end, dropped, len(body) - length)


def fit_messages(
    messages: Sequence[Message], fits: Callable[[Sequence[Message]], bool], *, keep_end: str = ""
) -> tuple[tuple[Message, ...], Truncation]:
    """Truncate the last user message; system and earlier turns stay."""
    user_turns = [index for index, message in enumerate(messages) if message.role == "user"]
    if not user_turns:
        raise ValueError("a prompt without a user message cannot be truncated; shorten it by hand")
    last = user_turns[-1]

    def with_query(text: str) -> tuple[Message, ...]:
        return (*messages[:last], replace(messages[last], content=text), *messages[last + 1 :])

    query = messages[last].content
    end = keep_end if keep_end and query.endswith(keep_end) else ""
    cut = fit(query, lambda text: fits(with_query(text)), keep_end=end)
    return with_query(cut.text), cut


def _longest_fit(text: str, fits: Callable[[str], bool]) -> int:
    """How many leading characters fit, by bisection."""
    low, high = 0, len(text)
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(text[:middle]) else (low, middle)
    return low
