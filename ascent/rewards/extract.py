"""Extract the answer from a text: the last `\\\\boxed{...}`, `#### ...` or `<answer>...</answer>`.

The last mark of any kind counts, so a corrected answer replaces an earlier one. Its content is taken whole: several
guesses in one box are a list. Marks inside a mark count in the same way.

Time is linear in the text, even with repeated, nested or open marks (n log n if it is nothing but marks): each kind of
mark is scanned once, and going inwards only drops marks from the ends of lists.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_UNBRACED = re.compile(r"[^\s${}\\]+")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # escaped braces are skipped
_HASHES = re.compile("(?=####)")
_HASHES_RUN = re.compile(r"####[ \t]*(?:####[ \t]*(?=####))*")  # a run of hashes up to its last
_TAG = re.compile("<(/?)answer>", re.IGNORECASE)


class _Mark(NamedTuple):
    """A mark at [start, stop) with its answer at [first, last); the mark with the largest `end` is the last one."""

    start: int
    stop: int
    first: int
    last: int
    end: int


class _ClosingTag(NamedTuple):
    """A closing tag, and the indices of the opening tags between it and the closing tag before it."""

    start: int
    stop: int
    openers: range


def extract_answer(text: str) -> str | None:
    """The answer as written, or None if the text marks none."""
    marks = _Marks(text)
    outer, inner = None, marks.last_within(0, len(text))
    # A box inside a tag, or after hashes: the inner one is the answer, unless it is empty.
    while inner is not None and (deeper := marks.last_within(inner.first, inner.last)) is not None:
        outer, inner = inner, deeper
    answers = (text[mark.first : mark.last].strip() for mark in (inner, outer) if mark is not None)
    return next((answer for answer in answers if answer), None)


class _Marks:
    """The marks of a text, for a sequence of nested ranges."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._boxes = sorted(_boxes(text), key=lambda box: (box.end, -box.start))
        self._hashes = [match.start() for match in _HASHES.finditer(text)]
        self._lines = (
            [-1, *(match.start() for match in re.finditer("\n", text)), len(text)]
            if self._hashes
            else []
        )
        self._opening, self._closing = _tags(text)

    def last_within(self, first: int, last: int) -> _Mark | None:
        """The last mark in [first, last); if two end together, a box before hashes before tags."""
        found, hashes = self._last_box(first, last), self._last_hashes(first, last)
        for other in (hashes, self._last_tag(first, last)):
            if found is None or (other is not None and other.end > found.end):
                found = other
        if found is None or found is not hashes:
            return found
        # Only now: skipping a long run once for every box around it would take quadratic time.
        run = _HASHES_RUN.match(self._text, found.start, found.end)
        return found._replace(first=run.end() if run else found.end)

    def _last_box(self, first: int, last: int) -> _Mark | None:
        while self._boxes and (self._boxes[-1].start < first or self._boxes[-1].stop > last):
            self._boxes.pop()
        return self._boxes[-1] if self._boxes else None

    def _last_hashes(self, first: int, last: int) -> _Mark | None:
        """In a line, the first hashes count."""
        while self._hashes and self._hashes[-1] + 4 > last:
            self._hashes.pop()
        if not self._hashes or self._hashes[-1] < first:
            return None
        line = bisect_left(self._lines, self._hashes[-1])
        start = self._hashes[bisect_left(self._hashes, max(first, self._lines[line - 1] + 1))]
        end = min(last, self._lines[line])
        return _Mark(start, end, start, end, end)

    def _last_tag(self, first: int, last: int) -> _Mark | None:
        while self._closing and self._closing[-1].stop > last:
            self._closing.pop()
        if not self._closing:
            return None
        start, stop, openers = self._closing[-1]
        index = max(openers.start, bisect_left(self._opening, (first, first)))
        if index >= openers.stop:
            return None
        return _Mark(self._opening[index][0], stop, self._opening[index][1], start, stop)


def _boxes(text: str) -> Iterator[_Mark]:
    closing = _closing_braces(text)
    for match in _BOX.finditer(text):
        first = match.end()
        if text[first : first + 1] == "{":
            last = closing.get(first)
            if last is not None:
                yield _Mark(match.start(), last + 1, first + 1, last, last)
        else:
            unbraced = _UNBRACED.match(text, first)
            if unbraced:
                last = first + len(unbraced[0].rstrip(".,;"))
                yield _Mark(match.start(), unbraced.end(), first, last, unbraced.end())


def _closing_braces(text: str) -> dict[int, int]:
    """The index of the closing brace for each opening one."""
    found: dict[int, int] = {}
    open_braces: list[int] = []
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            open_braces.append(match.start())
        elif match[0] == "}" and open_braces:
            found[open_braces.pop()] = match.start()
    return found


def _tags(text: str) -> tuple[list[tuple[int, int]], list[_ClosingTag]]:
    """The spans of the opening tags, and the closing tags that close one."""
    opening: list[tuple[int, int]] = []
    closing_tags: list[_ClosingTag] = []
    first_opener = 0
    for match in _TAG.finditer(text):
        if not match[1]:
            opening.append(match.span())
        else:
            if first_opener < len(opening):
                closing_tags.append(_ClosingTag(*match.span(), range(first_opener, len(opening))))
            first_opener = len(opening)
    return opening, closing_tags
