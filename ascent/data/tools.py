"""Tools in conversations: the `tools` column, an assistant's `tool_calls`, replies of the role `tool`.

They are read into `Message.extra` and rendered by the model's chat template. A template that would drop them is found
with a probe, before anything is trained.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from ascent.data.errors import RowError
from ascent.records import Message

CALL = '{"function": {"name": "...", "arguments": {...}}}'
TOOL = '{"type": "function", "function": {"name": "...", "parameters": {...}}}'
FIX = "use a model whose chat template has tools, or remove them from the data"
REPLY_KEYS = ("name", "tool_call_id")
# What a template may leave out, in words.
PARTS = {"tools": "the tools on offer", "tool_calls": "tool calls", "reply": "replies of tools"}


def read_extra(item: Mapping[str, Any], role: str, name: str) -> dict[str, Any]:
    """What a message holds besides its text: the calls of an assistant, the name and id of a tool's reply."""
    found: dict[str, Any] = {}
    if item.get("tool_calls") not in (None, [], ""):
        if role != "assistant":
            raise RowError(
                "type",
                f"{name} has 'tool_calls', but its role is {role}; only the assistant calls tools",
            )
        calls = _parse(item["tool_calls"], f"{name}.tool_calls")
        found["tool_calls"] = [
            _call(each, f"{name}.tool_calls[{index}]") for index, each in enumerate(calls)
        ]
    if role == "tool":
        found |= {key: str(item[key]) for key in REPLY_KEYS if item.get(key) not in (None, "")}
    return found


def read_tools(value: Any, name: str = "tools") -> list[Any]:
    """A list of JSON schemas of functions, or the same as JSON text."""
    tools = _parse(value, name)
    for index, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RowError("type", f"{name}[{index}] is {tool!r:.60}, but a tool is {TOOL}")
    return [_without_nulls(tool) for tool in tools]


def add_tools(messages: Sequence[Message], tools: list[Any]) -> tuple[Message, ...]:
    """The first message of a conversation carries its tools."""
    extra = json.loads(messages[0].extra) if messages[0].extra else {}
    return (replace(messages[0], extra=write_extra({**extra, "tools": tools})), *messages[1:])


def write_extra(extra: Mapping[str, Any]) -> str:
    return json.dumps(extra, ensure_ascii=False) if extra else ""


def template_input(messages: Sequence[Message]) -> tuple[list[dict[str, Any]], list[Any] | None]:
    """Messages and tools as chat templates take them."""
    tools: list[Any] | None = None
    turns = []
    for message in messages:
        extra = json.loads(message.extra) if message.extra else {}
        tools = extra.pop("tools", tools)
        turns.append({"role": message.role, "content": message.content, **extra})
    return turns, tools


def parts_in(messages: Sequence[Message]) -> set[str]:
    """Which of PARTS a conversation has. Replies count where tools or calls are with them."""
    found = {
        key for message in messages if message.extra for key in json.loads(message.extra)
    } & PARTS.keys()
    return (
        found | {"reply"}
        if found and any(message.role == "tool" for message in messages)
        else found
    )


def rendered_parts(render: Callable[[Sequence[Message]], str]) -> frozenset[str]:
    """Which of PARTS a chat template writes; RowError if it refuses the probe."""
    arguments = {"probe_key": "probe_value"}
    call = {
        "id": "call00000",
        "type": "function",
        "function": {"name": "probe_call", "arguments": arguments},
    }
    parameters = {
        "type": "object",
        "properties": {"probe_key": {"type": "string", "description": "probe"}},
    }
    tool = {
        "name": "probe_tool",
        "description": "probe",
        "parameters": {**parameters, "required": ["probe_key"]},
    }
    messages = (
        Message("user", "probe", write_extra({"tools": [{"type": "function", "function": tool}]})),
        Message("assistant", "", write_extra({"tool_calls": [call]})),
        Message(
            "tool", "probe_reply", write_extra({"name": "probe_call", "tool_call_id": "call00000"})
        ),
        Message("assistant", "probe"),
    )
    try:
        text = render(messages)
    except RowError as error:
        raise RowError("type", f"tools cannot be rendered: {error}; {FIX}") from None
    marks = {"tools": "probe_tool", "tool_calls": "probe_value", "reply": "probe_reply"}
    return frozenset(part for part, mark in marks.items() if mark in text)


def check_parts(wanted: Set[str], rendered: Set[str] | None, tokenizer: str) -> None:
    """RowError for parts that the template does not write; `rendered` is None without a template."""
    if rendered is None:
        raise RowError(
            "type", f"tools need a chat template, and {tokenizer} has none; use an instruct model"
        )
    if missing := [PARTS[each] for each in PARTS if each in wanted - rendered]:
        raise RowError(
            "type",
            f"the chat template of {tokenizer} does not write {' and '.join(missing)}; {FIX}",
        )


def _call(item: Any, name: str) -> dict[str, Any]:
    function = item.get("function", item) if isinstance(item, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RowError("type", f"{name} is {item!r:.60}, but a tool call is {CALL}")
    arguments = function.get("arguments")
    if isinstance(arguments, str):  # OpenAI's format; templates expect the object
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError as error:
            raise RowError(
                "syntax", f"{name}: the arguments are not JSON ({error.msg}); write an object"
            ) from None
    if arguments is not None and not isinstance(arguments, Mapping):
        raise RowError(
            "type", f"{name}: the arguments are {arguments!r:.60}, but they must be an object"
        )
    found = {
        "type": "function",
        "function": {"name": function["name"], "arguments": _without_nulls(arguments or {})},
    }
    return {"id": str(item["id"]), **found} if item.get("id") is not None else found


def _parse(value: Any, name: str) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise RowError(
                "syntax", f"{name} is text that is not JSON ({error.msg}); write a list"
            ) from None
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise RowError("type", f"{name} is {value!r:.60}, but it must be a list")
    return list(value)


def _without_nulls(value: Any) -> Any:
    """A table gives every tool the keys of all tools, and every call the arguments of all calls, empty ones as null."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list | tuple) else value
