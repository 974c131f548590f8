"""Typed access to the columns of a row: text, messages, numbers, labels. A wrong value is a RowError."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ascent.data.errors import RowError
from ascent.data.json_text import parse_messages
from ascent.data.tools import read_extra, write_extra
from ascent.records import Message, Role

# Role names in use, and ours for them.
ROLES: dict[str, Role] = {
    **{"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"},
    **{
        "human": "user",
        "gpt": "assistant",
        "bot": "assistant",
        "observation": "tool",
        "tool_response": "tool",
    },
}
# Keys that change the meaning of a message and that Message cannot hold: refused, never dropped.
REFUSED_IN_MESSAGES = ("loss", "weight", "reasoning_content", "thinking")
REFUSED_COLUMNS = ("images", "image", "videos", "audios", "objects")
MESSAGE = '{"role": "user", "content": "..."}'
LARGEST = 1e30  # float32 holds products with it
LABELS = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}


@dataclass
class Columns:
    """One row. Tracks which columns were read, and notes for the report."""

    id: str
    row: Mapping[str, Any]
    read: set[str] = field(default_factory=set)
    notes: Counter[str] = field(default_factory=Counter)

    def has(self, name: str) -> bool:
        return self.row.get(name) is not None

    def get(self, name: str) -> Any:
        """The value of a required column."""
        self.read.add(name)
        if not self.has(name):
            raise RowError(
                "missing", f"no value in column {name!r}; every row of this file needs one"
            )
        return self.row[name]

    def optional(self, name: str) -> Any:
        self.read.add(name)
        return self.row.get(name)

    def first(self, names: Sequence[str]) -> str:
        """The first of these columns that has a value."""
        for name in names:
            if self.has(name):
                return name
        raise RowError(
            "missing", f"no value in any of the columns {', '.join(names)}; every row needs one"
        )

    def text(self, name: str) -> str:
        return text(self.get(name), name)

    def unread(self) -> dict[str, Any]:
        """Columns that were not read; the reward gets them in Prompt.info."""
        return {
            name: value
            for name, value in self.row.items()
            if name not in self.read and value is not None
        }

    def check_text_only(self) -> None:
        for name in REFUSED_COLUMNS:
            if self.row.get(name) not in (None, [], "", {}):
                raise RowError(
                    "type",
                    f"column {name!r} is set, but only text can be trained on; remove the column",
                )


def text(value: Any, name: str) -> str:
    """A string that is not blank and can be written as UTF-8."""
    if not isinstance(value, str):
        raise RowError("type", f"{name} is {_describe(value)}, but it must be text")
    check_utf8(value, name, allow_nul=True)  # JSON can escape a NUL, and a model can write one
    if not value.strip():
        raise RowError("empty", f"{name} is empty; give it text or remove the row")
    return value


def check_utf8(value: str, name: str, *, allow_nul: bool = False) -> None:
    """RowError for text that was decoded from bytes that are not UTF-8, and for a NUL byte unless allowed."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RowError(
            "encoding", f"{name} is not UTF-8 near character {error.start}; re-encode the file"
        ) from None
    if "\0" in value and not allow_nul:
        raise RowError(
            "encoding", f"{name} holds a NUL byte at character {value.index(chr(0))}; remove it"
        )


def messages(value: Any, name: str) -> tuple[Message, ...]:
    """A list of {role, content} (or ShareGPT's {from, value}), also as JSON text; other text is one user turn."""
    value = parse_messages(value, name) if isinstance(value, str) else value
    if isinstance(value, str):
        return (Message("user", text(value, name)),)
    if not isinstance(value, Sequence):
        raise RowError(
            "type", f"{name} is {_describe(value)}, but it must be text or a list of messages"
        )
    if not value:
        raise RowError(
            "empty", f"{name} is an empty list; give it messages, each {MESSAGE}, or remove the row"
        )
    return tuple(_message(item, f"{name}[{index}]") for index, item in enumerate(value))


def answer(value: Any, name: str) -> tuple[Message, ...]:
    """Plain text, one message, or a list of messages that starts with the assistant's, also as JSON text."""
    value = parse_messages(value, name) if isinstance(value, str) else value
    if isinstance(value, str):
        return (Message("assistant", text(value, name)),)
    found = messages([value] if isinstance(value, Mapping) else value, name)
    if found[0].role != "assistant":
        raise RowError(
            "type",
            f"{name} starts with the role {found[0].role!r}; an answer starts with the assistant's",
        )
    return found


def number(value: Any, name: str) -> float:
    """A finite number; text is parsed, because CSV has no other type."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise RowError(
                "type", f"{name} is {_describe(value)}, but it must be a number"
            ) from None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not -LARGEST <= value <= LARGEST
    ):
        raise RowError(
            "type",
            f"{name} is {_describe(value)}, but it must be a finite number, within {LARGEST:g}",
        )
    return float(value)


def label(value: Any, name: str) -> bool:
    """true or false, also written as 1 and 0."""
    found = (
        LABELS.get(str(value).strip().lower())
        if isinstance(value, bool | int | float | str)
        else None
    )
    if found is None:
        raise RowError(
            "type", f"{name} is {_describe(value)}, but it must be true or false (or 1 or 0)"
        )
    return found


def as_list(value: Any, name: str) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise RowError("type", f"{name} is {_describe(value)}, but it must be a list")
    return list(value)


def _message(item: Any, name: str) -> Message:
    if not isinstance(item, Mapping):
        raise RowError("type", f"{name} is {_describe(item)}, but a message is {MESSAGE}")
    for key in REFUSED_IN_MESSAGES:
        if item.get(key) not in (None, [], ""):
            raise RowError(
                "type",
                f"{name} has {key!r}, which a plain message cannot hold; remove it or the row",
            )
    role_key, content_key = (
        ("from", "value") if item.get("from") is not None else ("role", "content")
    )
    role, content = item.get(role_key), item.get(content_key)
    extra = read_extra(item, ROLES.get(str(role), ""), name)
    if content is None and "tool_calls" in extra:
        content = ""
    if role is None or content is None:
        raise RowError(
            "missing",
            f"{name} has no {role_key if role is None else content_key!r}; a message needs both",
        )
    if not isinstance(role, str) or role not in ROLES:
        raise RowError(
            "type",
            f"{name} has the role {role!r:.60}; write user, assistant, system or tool (read as these: "
            f"{', '.join(f'{word} as {ROLES[word]}' for word in ROLES if word != ROLES[word])})",
        )
    content = _join_parts(content, name)
    if content != "" or not (ROLES[role] == "system" or "tool_calls" in extra):
        content = text(content, f"{name}.{content_key}")
    return Message(ROLES[role], content, write_extra(extra))


def _join_parts(content: Any, name: str) -> Any:
    """OpenAI's list of {type: text} parts, as one text."""
    if not isinstance(content, list):
        return content
    for part in content:
        if (
            not isinstance(part, Mapping)
            or part.get("type") != "text"
            or not isinstance(part.get("text"), str)
        ):
            raise RowError("type", f"{name} has a content part that is not text: {_describe(part)}")
    return "".join(part["text"] for part in content)


def _describe(value: Any) -> str:
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= 60 else shown[:57] + '...'}"
