"""Where in a text the answer stands: the last `\\boxed{...}`, `#### ...` or `<answer>...</answer>`.

The last of all of them counts, so an answer that was taken back does not. What stands inside is taken whole: a list of
guesses in one box is a list, not any of its members.
"""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_HASHES = re.compile(r"####[ \t]*([^\n]*)")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)


def answer_in(text: str) -> str | None:
    """The answer as it was written, or None when the text marks none."""
    found = [*_boxes(text), *_after_hashes(text), *_tagged(text)]
    if not found:
        return None
    _, inner = max(found, key=lambda each: each[0])
    # A box inside a tag, or behind hashes: the inner one is the answer.
    deeper = answer_in(inner)
    return (inner if deeper is None else deeper).strip() or None


def _boxes(text: str) -> list[tuple[int, str]]:
    found = []
    for match in _BOX.finditer(text):
        start = match.end()
        if start < len(text) and text[start] == "{":
            end = closing_brace(text, start)
            if end is not None:
                found.append((end, text[start + 1 : end]))
        else:
            bare = re.match(r"[^\s${}\\]+", text[start:])
            if bare:
                found.append((start + bare.end(), bare.group().rstrip(".,;")))
    return found


def _after_hashes(text: str) -> list[tuple[int, str]]:
    return [(match.end(), match[1]) for match in _HASHES.finditer(text)]


def _tagged(text: str) -> list[tuple[int, str]]:
    return [(match.end(), match[1]) for match in _TAG.finditer(text)]


def closing_brace(text: str, start: int) -> int | None:
    """The place of the brace that closes the one at `start`; escaped braces do not count."""
    depth, place = 0, start
    while place < len(text):
        letter = text[place]
        if letter == "\\":
            place += 2
            continue
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return place
        place += 1
    return None
