"""Schemas: which columns of a dataset mean what. TRL, verl, OpenRLHF, ms-swift and our own rankings.

The schema of a file is detected once, from the columns that most of its first rows fill. Every row is then read by that
schema, so a row that lacks a column is invalid. docs/data.md has the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from ascent.data import columns as values
from ascent.data.columns import Columns
from ascent.data.errors import RowError
from ascent.data.json_text import parse_messages
from ascent.data.preferences import LABEL_COLUMNS, make_pair, make_ranking, make_unpaired
from ascent.data.tools import add_tools, read_tools
from ascent.records import Example, Message, Pair, Prompt, Ranking, StepExample, UnpairedExample

Record: TypeAlias = Prompt | Example | Pair | Ranking | UnpairedExample | StepExample
RecordKind = Literal["prompts", "examples", "pairs", "rankings", "unpaired", "steps"]
Row: TypeAlias = Mapping[str, Any]
Messages: TypeAlias = tuple[Message, ...]

QUESTIONS = ("prompt", "instruction", "query", "question", "problem", "input")
# Where a row has both, the worked solution is the target and the bare answer is for the reward.
ANSWERS = ("completion", "response", "output", "solution", "answer")
CONVERSATIONS = ("messages", "conversations", "conversation")
RESPONSES = ("responses", "completions", "answers", "ranked")
STACK_EXCHANGE = ("response_j", "response_k")  # chosen, rejected
GROUND_TRUTH = ("answer", "solution", "ground_truth", "label", "completion", "response", "output")


@dataclass(frozen=True)
class Schema:
    """`fits` looks at the filled columns of a row; `read` returns the record or raises RowError."""

    name: str
    kind: RecordKind
    used_by: str
    fits: Callable[[Row], bool]
    read: Callable[[Columns], Record]


def read_record(schema: Schema, columns: Columns) -> Record:
    """One row as a record, with the tools of its column `tools`."""
    tools = columns.optional("tools")
    record = schema.read(columns)
    if tools in (None, [], ""):
        return record
    if schema.read is read_text:
        raise RowError(
            "type",
            "column 'tools' is set, but plain text offers no tools; give messages, or remove it",
        )
    added = read_tools(tools)
    if isinstance(record, Example | Prompt):
        return replace(record, messages=add_tools(record.messages, added))
    prompt = replace(record.prompt, messages=add_tools(record.prompt.messages, added))
    return replace(record, prompt=prompt)


def _first_value(row: Row, names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _has_any(row: Row, names: Sequence[str]) -> bool:
    return _first_value(row, names) is not None


def read_question(columns: Columns) -> Messages:
    """System prompt, earlier turns, then the question itself (Alpaca's input below it)."""
    name = columns.first(QUESTIONS)
    found = values.messages(columns.get(name), name)
    if name == "instruction" and columns.optional("input"):
        found = (
            Message("user", f"{found[0].content}\n{values.text(columns.get('input'), 'input')}"),
        )
    return (*_read_system(columns), *_read_history(columns), *found)


def read_conversation(columns: Columns) -> Messages:
    name = columns.first(CONVERSATIONS)
    raw = columns.get(name)
    raw = parse_messages(raw, name) if isinstance(raw, str) else raw
    if isinstance(raw, Sequence) and raw and isinstance(raw[0], Mapping) and "human" in raw[0]:
        raw = [turn for item in raw for turn in _split_round(item, name)]
    if isinstance(raw, str):
        raise RowError("type", f"{name} is text, but it must be a list of messages")
    return (*_read_system(columns), *values.messages(raw, name))


def _split_round(item: Any, name: str) -> list[dict[str, Any]]:
    """ms-swift's ShareGPT form: one {human, assistant} per round."""
    if not isinstance(item, Mapping) or item.get("human") is None or item.get("assistant") is None:
        raise RowError(
            "missing", f"a round of {name} has no 'human' or no 'assistant'; it needs both"
        )
    return [
        {"role": "user", "content": item["human"]},
        {"role": "assistant", "content": item["assistant"]},
    ]


def _read_system(columns: Columns) -> Messages:
    value = columns.optional("system")
    return (Message("system", values.text(value, "system")),) if value else ()


def _read_history(columns: Columns) -> Messages:
    found: list[Message] = []
    for index, item in enumerate(values.as_list(columns.optional("history") or [], "history")):
        turns = values.as_list(item, f"history[{index}]")
        if len(turns) != 2:
            raise RowError(
                "type", f"history[{index}] has {len(turns)} entries; each is [question, answer]"
            )
        found.append(Message("user", values.text(turns[0], f"history[{index}][0]")))
        found.append(Message("assistant", values.text(turns[1], f"history[{index}][1]")))
    return tuple(found)


def _read_completion(columns: Columns) -> Messages:
    name = columns.first(ANSWERS)
    return values.answer(columns.get(name), name)


def _split_last_answer(messages: Messages) -> tuple[Messages, Messages]:
    if messages[-1].role != "assistant":
        raise RowError(
            "missing",
            f"the last message is the {messages[-1].role}'s; it must be the assistant's answer",
        )
    return messages[:-1], messages[-1:]


def read_chat(columns: Columns) -> Example:
    messages = read_conversation(columns)
    _split_last_answer(messages)  # raises where the assistant does not come last
    return Example(columns.id, messages)


def read_prompt_completion(columns: Columns) -> Example:
    return Example(columns.id, (*read_question(columns), *_read_completion(columns)))


def read_text(columns: Columns) -> Example:
    return Example(columns.id, (Message("assistant", columns.text("text")),))


def read_pair(columns: Columns) -> Pair:
    has_question = any(columns.has(name) for name in QUESTIONS)
    prompt = read_question(columns) if has_question else _read_system(columns)
    return make_pair(columns, prompt, columns.get("chosen"), columns.get("rejected"))


def read_stack_exchange(columns: Columns) -> Pair:
    chosen, rejected = (values.answer(columns.get(name), name) for name in STACK_EXCHANGE)
    return make_pair(columns, read_question(columns), chosen, rejected)


def read_chat_pair(columns: Columns) -> Pair:
    conversation = read_conversation(columns)
    prompt, chosen = _split_last_answer(conversation)
    if columns.has("rejected_response"):
        rejected = values.answer(columns.get("rejected_response"), "rejected_response")
        return make_pair(columns, prompt, chosen, rejected)
    rejected = values.messages(columns.get("rejected_messages"), "rejected_messages")
    _split_last_answer(rejected)  # raises where the assistant does not come last
    # A whole conversation, which may differ before the last answer; both may start with the assistant's greeting.
    if rejected[0].role != "assistant" or (
        conversation[0].role == "assistant" and len(rejected) > 1
    ):
        roles = [message.role for message in conversation]
        first = roles.index("assistant", roles.index("user")) if "user" in roles else len(prompt)
        prompt, chosen = conversation[:first], conversation[first:]
    return make_pair(columns, prompt, chosen, rejected)


def read_ranking(columns: Columns) -> Ranking:
    return make_ranking(
        columns, Prompt(columns.id, read_question(columns)), columns.first(RESPONSES)
    )


def read_unpaired(columns: Columns) -> UnpairedExample:
    prompt, answer = read_question(columns), _read_completion(columns)
    return make_unpaired(columns, Prompt(columns.id, prompt), answer)


def read_chat_unpaired(columns: Columns) -> UnpairedExample:
    prompt, answer = _split_last_answer(read_conversation(columns))
    return make_unpaired(columns, Prompt(columns.id, prompt), answer)


def read_steps(columns: Columns) -> StepExample:
    """TRL's stepwise supervision: a list of steps and a list of labels: true, false, a probability or null."""
    steps = values.as_list(columns.get("completions"), "completions")
    labels = values.as_list(columns.get("labels"), "labels")
    texts = tuple(values.text(step, f"completions[{index}]") for index, step in enumerate(steps))
    right = tuple(
        None
        if label is None
        else float(label)
        if isinstance(label, bool)
        else values.number(label, f"labels[{index}]")
        for index, label in enumerate(labels)
    )
    return StepExample(Prompt(columns.id, read_question(columns)), texts, right)


def read_prompt(columns: Columns) -> Prompt:
    """A question, its ground truth if a column holds one, and the unread columns for the reward."""
    is_chat = any(columns.has(name) for name in CONVERSATIONS)
    messages = read_conversation(columns) if is_chat else read_question(columns)
    if messages[-1].role == "assistant":
        messages = messages[:-1]
    if not messages:
        raise RowError("missing", "no prompt: the row has no message before the answer")
    return Prompt(columns.id, messages, _read_ground_truth(columns), columns.unread())


def _read_ground_truth(columns: Columns) -> str | None:
    rule = columns.row.get("reward_model")
    if isinstance(rule, Mapping) and rule.get("ground_truth") is not None:
        columns.read.add("reward_model")
        return str(rule["ground_truth"])
    name = next((each for each in GROUND_TRUTH if columns.has(each)), "")
    value = columns.row.get(name)
    # A list is for a reward of one's own, and another column no answer in its place.
    if not isinstance(value, str | int | float):
        return None
    columns.read.add(name)
    return values.text(str(value), name)


def read_extra_info(columns: Columns) -> Example:
    """verl's math files hold question and worked solution in extra_info."""
    if not _has_extra_info(columns.row):
        raise RowError(
            "missing",
            "extra_info has no 'question' or no 'answer'; every row of this file needs both",
        )
    extra = columns.get("extra_info")
    prompt = values.messages(extra["question"], "extra_info.question")
    return Example(columns.id, (*prompt, *values.answer(extra["answer"], "extra_info.answer")))


def _has_extra_info(row: Row) -> bool:
    extra = row.get("extra_info")
    return (
        isinstance(extra, Mapping)
        and extra.get("question") is not None
        and extra.get("answer") is not None
    )


def _has_chat_pair(row: Row) -> bool:
    return _has_any(row, CONVERSATIONS) and _has_any(
        row, ("rejected_response", "rejected_messages")
    )


def _has_steps(row: Row) -> bool:
    lists = [row.get(name) for name in ("completions", "labels")]
    return _has_any(row, QUESTIONS) and all(
        isinstance(each, Sequence) and not isinstance(each, str) for each in lists
    )


def _has_completion(row: Row) -> bool:
    return _has_any(row, QUESTIONS) and _has_any(row, ANSWERS)


def _has_label(row: Row) -> bool:
    """Next to an answer, `label` says good or bad; next to a prompt alone it is the ground truth."""
    value = _first_value(row, LABEL_COLUMNS)
    return (
        isinstance(value, bool | int | float | str) and str(value).strip().lower() in values.LABELS
    )


def _ends_with_assistant(row: Row) -> bool:
    """True as well where the last turn cannot be read: the reader then reports the error."""
    turns = _first_value(row, CONVERSATIONS)
    if turns is None:
        return False
    last = turns[-1] if isinstance(turns, Sequence) and turns else None
    if not isinstance(last, Mapping) or "assistant" in last:
        return True
    return values.ROLES.get(str(last.get("role") or last.get("from")), "assistant") == "assistant"


# The first schema that fits is used. The most specific come first, so that a preference is not read as a demonstration.
SCHEMAS = (
    Schema(
        *("chosen and rejected", "pairs", "TRL, OpenRLHF, ms-swift"),
        fits=lambda row: _has_any(row, ("chosen", "rejected")),
        read=read_pair,
    ),
    Schema("messages and a rejected response", "pairs", "ms-swift", _has_chat_pair, read_chat_pair),
    Schema(
        *("a question, response_j and response_k", "pairs", "StackExchange"),
        fits=lambda row: _has_any(row, QUESTIONS) and _has_any(row, STACK_EXCHANGE),
        read=read_stack_exchange,
    ),
    Schema("a question, its steps and their labels", "steps", "TRL", _has_steps, read_steps),
    Schema(
        *("a question and several answers", "rankings", "Ascent, UltraFeedback, Nectar"),
        fits=lambda row: (
            _has_any(row, QUESTIONS) and isinstance(_first_value(row, RESPONSES), Sequence)
        ),
        read=read_ranking,
    ),
    Schema(
        *("a question, an answer and a label", "unpaired", "TRL, OpenRLHF"),
        fits=lambda row: _has_completion(row) and _has_label(row),
        read=read_unpaired,
    ),
    Schema(
        *("messages and a label", "unpaired", "ms-swift"),
        fits=lambda row: _ends_with_assistant(row) and _has_label(row),
        read=read_chat_unpaired,
    ),
    Schema(
        *("messages", "examples", "TRL, verl, OpenRLHF, ms-swift"),
        fits=lambda row: (
            _ends_with_assistant(row) and not _has_label(row) and not _has_chat_pair(row)
        ),
        read=read_chat,
    ),
    Schema(
        *("a question and an answer", "examples", "TRL, verl, OpenRLHF, ms-swift"),
        fits=lambda row: _has_completion(row) and not _has_label(row),
        read=read_prompt_completion,
    ),
    Schema("plain text", "examples", "TRL", lambda row: row.get("text") is not None, read_text),
    Schema(
        *("a question", "prompts", "TRL, verl, OpenRLHF, ms-swift"),
        fits=lambda row: _has_any(row, QUESTIONS) or _has_any(row, CONVERSATIONS),
        read=read_prompt,
    ),
    Schema(
        "extra_info with question and answer", "examples", "verl", _has_extra_info, read_extra_info
    ),
    # Last, so only where unpaired data is asked for: a label with a wrong value is then reported row by row.
    Schema(
        *("a question, an answer and a label", "unpaired", "TRL, OpenRLHF"),
        fits=lambda row: _has_completion(row) and _has_any(row, LABEL_COLUMNS),
        read=read_unpaired,
    ),
    Schema(
        *("messages and a label", "unpaired", "ms-swift"),
        fits=lambda row: _ends_with_assistant(row) and _has_any(row, LABEL_COLUMNS),
        read=read_chat_unpaired,
    ),
)
