"""Where in a text the answer stands: the last `\\boxed{...}`, `#### ...` or `<answer>...</answer>`.

The last of all of them counts, so an answer that was taken back does not. What stands inside is taken whole: a list of
guesses in one box is a list, not any of its members. Marks inside a mark count in the same way.

Time is linear in the text, whatever it repeats, nests or leaves open (n log n where it is nothing but marks): a text is
gone through once for each kind of mark, and going inwards only drops marks from the ends of lists.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_BARE = re.compile(r"[^\s${}\\]+")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # what is escaped is passed over
_HASHES = re.compile("(?=####)")
_BEHIND = re.compile(r"####[ \t]*(?:####[ \t]*(?=####))*")  # hashes behind hashes at once, but for the last
_TAG = re.compile("<(/?)answer>", re.IGNORECASE)


class _Mark(NamedTuple):
    """It stands from `start` to before `stop`, the answer in it from `first` to before `last`; the largest `end` is
    the last mark."""

    start: int
    stop: int
    first: int
    last: int
    end: int


class _Tagged(NamedTuple):
    """A closing tag, and which of all opening tags stand between it and the closing tag before it."""

    start: int
    stop: int
    opened: range


def answer_in(text: str) -> str | None:
    """The answer as it was written, or None when the text marks none."""
    marks = _Marks(text)
    around, inside = None, marks.last_within(0, len(text))
    # A box inside a tag, or behind hashes: the inner one is the answer, unless nothing stands in it.
    while inside is not None and (deeper := marks.last_within(inside.first, inside.last)) is not None:
        around, inside = inside, deeper
    answers = (text[mark.first : mark.last].strip() for mark in (inside, around) if mark is not None)
    return next((answer for answer in answers if answer), None)


class _Marks:
    """The marks of a text, for one stretch of it after another, each within the one before."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._boxes = sorted(_boxes(text), key=lambda box: (box.end, -box.start))
        self._hashes = [match.start() for match in _HASHES.finditer(text)]
        self._lines = [-1, *(match.start() for match in re.finditer("\n", text)), len(text)] if self._hashes else []
        self._opening, self._tagged = _tags(text)

    def last_within(self, first: int, last: int) -> _Mark | None:
        """The last mark from `first` to before `last`; where two end together, a box before hashes before tags."""
        found, hashes = self._last_box(first, last), self._last_hashes(first, last)
        for other in (hashes, self._last_tag(first, last)):
            if found is None or (other is not None and other.end > found.end):
                found = other
        if found is None or found is not hashes:
            return found
        # Only now: to pass over what may be long in vain, once for every box around it, takes quadratic time.
        behind = _BEHIND.match(self._text, found.start, found.end)
        return found._replace(first=behind.end() if behind else found.end)

    def _last_box(self, first: int, last: int) -> _Mark | None:
        while self._boxes and (self._boxes[-1].start < first or self._boxes[-1].stop > last):
            self._boxes.pop()
        return self._boxes[-1] if self._boxes else None

    def _last_hashes(self, first: int, last: int) -> _Mark | None:
        """Of a line, the first hashes count."""
        while self._hashes and self._hashes[-1] + 4 > last:
            self._hashes.pop()
        if not self._hashes or self._hashes[-1] < first:
            return None
        line = bisect_left(self._lines, self._hashes[-1])
        start = self._hashes[bisect_left(self._hashes, max(first, self._lines[line - 1] + 1))]
        end = min(last, self._lines[line])
        return _Mark(start, end, start, end, end)

    def _last_tag(self, first: int, last: int) -> _Mark | None:
        while self._tagged and self._tagged[-1].stop > last:
            self._tagged.pop()
        if not self._tagged:
            return None
        start, stop, opened = self._tagged[-1]
        place = max(opened.start, bisect_left(self._opening, (first, first)))
        if place >= opened.stop:
            return None
        return _Mark(self._opening[place][0], stop, self._opening[place][1], start, stop)


def _boxes(text: str) -> Iterator[_Mark]:
    closing = _closing_braces(text)
    for match in _BOX.finditer(text):
        first = match.end()
        if text[first : first + 1] == "{":
            last = closing.get(first)
            if last is not None:
                yield _Mark(match.start(), last + 1, first + 1, last, last)
        else:
            bare = _BARE.match(text, first)
            if bare:
                last = first + len(bare[0].rstrip(".,;"))
                yield _Mark(match.start(), bare.end(), first, last, bare.end())


def _closing_braces(text: str) -> dict[int, int]:
    """The place of the brace that closes each one that is closed."""
    found: dict[int, int] = {}
    waiting: list[int] = []
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            waiting.append(match.start())
        elif match[0] == "}" and waiting:
            found[waiting.pop()] = match.start()
    return found


def _tags(text: str) -> tuple[list[tuple[int, int]], list[_Tagged]]:
    """Where every opening tag starts and stops, and the closing tags that close one."""
    opening: list[tuple[int, int]] = []
    tagged: list[_Tagged] = []
    since = 0
    for match in _TAG.finditer(text):
        if not match[1]:
            opening.append(match.span())
        else:
            if since < len(opening):
                tagged.append(_Tagged(*match.span(), range(since, len(opening))))
            since = len(opening)
    return opening, tagged
