"""JSON in text: read strictly, and messages that a column holds as text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ascent.data.errors import RowError

WHITESPACE = re.compile(r"[ \t\r\n]*")
# A list of objects begins like this, in JSON and as Python prints it.
LIST_START = re.compile(r"""\s*\[\s*\{\s*(["'])\w+\1\s*:""")
SPEAKERS = (
    "system",
    "human",
    "gpt",
    "user",
    "assistant",
)  # other lists have "from", too: {"from": "Rome", "to": ...}
ROLES = ("system", "user", "assistant", "tool")
# What only messages have, where the rest cannot be parsed.
ROLE_NAME = re.compile(rf"""(["'])role\1\s*:\s*(["'])({"|".join(ROLES)})\2""")
CONTENT_NAME = re.compile(r"""(["'])(content|tool_calls)\1\s*:""")
SPEAKER_NAME = re.compile(rf"""(["'])from\1\s*:\s*(["'])({"|".join(SPEAKERS)})\2""")
LIST_END = re.compile(r"\}\s*\]")


def parse_json(text: str, at: int = 0) -> tuple[Any, int]:
    """The JSON value at a position, and where it ends. RowError for invalid JSON, duplicate names, NaN, numbers and
    depths beyond Python's limits."""
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" at")
        raise RowError(
            "syntax", f"not JSON: {reason} at character {error.pos - at}; write one whole object"
        ) from None
    except RecursionError:
        raise RowError(
            "syntax", "nested too deep to be read; no row needs more than a few levels"
        ) from None
    except RowError:
        raise
    except ValueError:  # int() limits the number of digits
        raise RowError(
            "syntax", "a number has thousands of digits; write a smaller one, or text in quotes"
        ) from None


def skip_blank(text: str, at: int) -> int:
    """The position after the white space at `at`."""
    return WHITESPACE.match(text, at).end()  # type: ignore[union-attr] # it matches everywhere


def parse_messages(text: str, name: str) -> Any:
    """The list where the whole text is a list of messages as JSON, otherwise the text.

    A list of messages that is not JSON, such as Python's own notation, is a RowError: as plain text it would be
    trained on literally. Longer text that begins with a list is text.
    """
    if not LIST_START.match(text):
        return text
    try:
        found, end = parse_json(text, skip_blank(text, 0))
    except RowError as error:
        is_longer = not text.rstrip().endswith("]") and LIST_END.search(text)
        has_role = ROLE_NAME.search(text) and CONTENT_NAME.search(text)
        if is_longer or not (has_role or SPEAKER_NAME.search(text)):
            return text
        raise RowError(
            "syntax",
            f"{name} looks like a list of messages written as text, but it is {str(error).partition(';')[0]}; write it "
            "with json.dumps (Python's repr is not JSON), or as the content of a message where this text is meant",
        ) from None
    is_chat = skip_blank(text, end) == len(text) and all(_is_message(item) for item in found)
    return found if is_chat else text


def _is_message(item: Any) -> bool:
    if not isinstance(item, Mapping):
        return False
    has_role = item.get("role") in ROLES and ("content" in item or "tool_calls" in item)
    return has_role or (item.get("from") in SPEAKERS and "value" in item)


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RowError("syntax", f"the name {twice!r} is given twice in one object; keep one")
    return found


def _refuse_constant(word: str) -> Any:
    raise RowError("syntax", f"{word} is not JSON; write a finite number, or null")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_names, parse_constant=_refuse_constant)
