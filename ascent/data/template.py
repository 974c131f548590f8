"""What a chat template does to texts: messages that it leaves out, and text with which it opens an answer.

Some templates drop the reasoning of an answer, and some ignore system prompts or the replies of tools. Trained or
sampled that way, a model never sees what is in the data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ascent.data.errors import RowError
from ascent.records import Message

PROBE = "probe"
OPENED = re.compile(
    r"[^\w\s/]\w[\w:]*[^\w\s/]\s*$"
)  # <think>, [THINK]: closed by </think>, [/THINK]
Render = Callable[[Sequence[Message]], str]
FIX = "move it into a message that the template writes, or use another template"


def find_unwritten(messages: Sequence[Message], render: Render) -> int | None:
    """The first system, user or tool message that the template leaves out: a mark in place of its text is not there.

    A template may change such a text (trim it, write it as JSON, take /no_think out), and may drop the reasoning of
    earlier answers: a sampler gets the same.
    """
    marks = {
        index: f"{PROBE}{index}end"
        for index, message in enumerate(messages)
        if message.role != "assistant" and message.content.strip()
    }
    marked = [
        replace(each, content=marks.get(index, each.content)) for index, each in enumerate(messages)
    ]
    text = render(marked).lower()
    return next((index for index, mark in marks.items() if mark not in text), None)


def check_answer(message: Message, turn: str, opening: str) -> None:
    """RowError where the turn that a template wrote does not have all of an answer, up to white space.

    An answer may begin with the end of the prompt, which opened the thought.
    """
    content = message.content.strip()
    if content not in turn and "".join(content.split()) not in "".join((opening + turn).split()):
        raise RowError(
            "type",
            f"the chat template leaves out part of an answer that is trained: {content!r:.60} becomes {turn!r:.60}; "
            "take that part out of the answer, or use a template that writes answers as they are",
        )


class Opening(NamedTuple):
    """What a prompt has behind the question, and its end where that opens a thought which answers do not begin with."""

    text: str
    opened: str


def find_opening(render: Render, render_prompt: Render) -> Opening:
    asked = (Message("user", PROBE),)
    prompt, turn = render_prompt(asked), render((*asked, Message("assistant", PROBE)))
    text = prompt.rpartition(PROBE)[2]
    tag = None if turn.startswith(prompt) else OPENED.search(text)
    return Opening(text, tag[0] if tag else "")


def opened_answer(message: Message, before: str, full: str, opened: str, *, check: bool) -> str:
    """What a sampler adds to the prompt `before`, whose end opens the answer; `full` is the template's own version.

    The answer begins with the text `opened`, or goes on from there as sampled ones do: then it closes the thought. Any
    other would be trained as an unfinished thought, so it is a RowError unless `check` is off.
    """
    head = before.removesuffix(opened)
    if not opened or head == before or not full.startswith(head):
        raise RowError(
            "type",
            f"the chat template ends a prompt with {before[-40:]!r}, but begins this answer otherwise, so what a "
            "sampler adds cannot be located; use a template whose answers follow its generation prompt",
        )
    if "tool_calls" in message.extra:
        raise RowError(
            "type",
            f"the chat template opens an answer with {opened!r}, but not one with tool calls, so it cannot be located; "
            "use a template that writes both",
        )
    mark, content = opened.strip(), message.content.lstrip()
    if content.startswith(mark):
        return content[len(mark) :].removeprefix(opened[len(opened.rstrip()) :])
    closing = f"{mark[0]}/{mark[1:]}"
    if check and closing not in content:
        raise RowError(
            "type",
            f"the chat template opens every answer with {opened!r}, but this one neither begins with it nor closes it; "
            f"begin it with {opened!r}, the reasoning (it may be empty) and {closing!r}, or use a template that does "
            "not open it",
        )
    return message.content
