"""Which columns mean what: the layouts of TRL, verl, OpenRLHF and ms-swift, and of our own rankings.

A file's layout is recognized once, from the columns that most of its first rows fill; every row is then read by that
layout, so a row that lacks a column is a bad row and not another layout. docs/data.md has the same table in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ascent.data import columns as values
from ascent.data.columns import Columns
from ascent.data.errors import RowError
from ascent.data.preferences import THUMB_COLUMNS, judged, pair, ranking
from ascent.records import Example, Message, Pair, Prompt, Ranking, StepExample, UnpairedExample

Record: TypeAlias = Prompt | Example | Pair | Ranking | UnpairedExample | StepExample
Want = Literal["prompts", "examples", "pairs", "rankings", "unpaired", "steps"]

QUESTIONS = ("prompt", "instruction", "query", "question", "problem", "input")
# A worked solution is what to imitate; the bare answer, where there are both, is for the reward.
ANSWERS = ("completion", "response", "output", "solution", "answer")
CONVERSATIONS = ("messages", "conversations", "conversation")
RESPONSES = ("responses", "completions", "answers", "ranked")
BETTER_AND_WORSE = ("response_j", "response_k")


@dataclass(frozen=True)
class Schema:
    """`fits` looks at a row's filled columns; `read` makes the record or raises RowError."""

    name: str
    kind: Want
    known_from: str
    fits: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Columns], Record]


def _value(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    """What the first filled one of these columns holds."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def _any(row: Mapping[str, Any], names: Sequence[str]) -> bool:
    return _value(row, names) is not None


def _is_thumb(row: Mapping[str, Any]) -> bool:
    """A label is a thumb beside an answer; alone it is the ground truth of a prompt."""
    value = _value(row, THUMB_COLUMNS)
    return isinstance(value, bool | int | float | str) and str(value).strip().lower() in values.THUMBS


def question(fields: Columns) -> tuple[Message, ...]:
    """The question in messages: system, earlier turns, then the question itself (Alpaca's input below it)."""
    name = fields.first(QUESTIONS)
    found = values.messages(fields.get(name), name)
    if name == "instruction" and fields.optional("input"):
        found = (Message("user", f"{found[0].content}\n{values.text(fields.get('input'), 'input')}"),)
    return (*_system(fields), *_history(fields), *found)


def conversation(fields: Columns) -> tuple[Message, ...]:
    name = fields.first(CONVERSATIONS)
    raw = fields.get(name)
    if isinstance(raw, Sequence) and raw and isinstance(raw[0], Mapping) and "human" in raw[0]:
        raw = [turn for round_ in raw for turn in _round(round_, name)]
    if isinstance(raw, str):
        raise RowError("type", f"{name} is text, but it must be a list of messages")
    return (*_system(fields), *values.messages(raw, name))


def _round(item: Any, name: str) -> list[dict[str, Any]]:
    """ms-swift's ShareGPT form: one {human, assistant} for each round."""
    if not isinstance(item, Mapping) or item.get("human") is None or item.get("assistant") is None:
        raise RowError("missing", f"a round of {name} has no 'human' or no 'assistant'; it needs both")
    return [{"role": "user", "content": item["human"]}, {"role": "assistant", "content": item["assistant"]}]


def _system(fields: Columns) -> tuple[Message, ...]:
    value = fields.optional("system")
    return (Message("system", values.text(value, "system")),) if value else ()


def _history(fields: Columns) -> tuple[Message, ...]:
    found: list[Message] = []
    for place, item in enumerate(values.listed(fields.optional("history") or [], "history")):
        turns = values.listed(item, f"history[{place}]")
        if len(turns) != 2:
            raise RowError("type", f"history[{place}] has {len(turns)} entries; each is [question, answer]")
        found.append(Message("user", values.text(turns[0], f"history[{place}][0]")))
        found.append(Message("assistant", values.text(turns[1], f"history[{place}][1]")))
    return tuple(found)


def _prompt(fields: Columns, messages: tuple[Message, ...], answer: str | None = None) -> Prompt:
    return Prompt(fields.id, messages, answer)


def _asked_and_answered(fields: Columns) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    name = fields.first(ANSWERS)
    return question(fields), values.answer(fields.get(name), name)


def _ended(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """A conversation as (what was asked, the last answer)."""
    if messages[-1].role != "assistant":
        raise RowError("missing", f"the last message is the {messages[-1].role}'s; it must be the assistant's answer")
    return messages[:-1], messages[-1:]


def read_chat(fields: Columns) -> Example:
    messages = conversation(fields)
    _ended(messages)
    return Example(fields.id, messages)


def read_prompt_completion(fields: Columns) -> Example:
    asked, answered = _asked_and_answered(fields)
    return Example(fields.id, (*asked, *answered))


def read_text(fields: Columns) -> Example:
    return Example(fields.id, (Message("assistant", fields.text("text")),))


def read_pair(fields: Columns) -> Pair:
    asked = question(fields) if any(fields.has(name) for name in QUESTIONS) else _system(fields)
    return pair(fields, asked, fields.get("chosen"), fields.get("rejected"))


def read_j_over_k(fields: Columns) -> Pair:
    """The pairs of StackExchange: j was voted above k."""
    won, lost = (values.answer(fields.get(name), name) for name in BETTER_AND_WORSE)
    return pair(fields, question(fields), won, lost)


def read_chat_pair(fields: Columns) -> Pair:
    asked, chosen = _ended(conversation(fields))
    if fields.has("rejected_response"):
        rejected = values.answer(fields.get("rejected_response"), "rejected_response")
    else:
        rejected = _ended(values.messages(fields.get("rejected_messages"), "rejected_messages"))[1]
    return pair(fields, asked, chosen, rejected)


def read_ranking(fields: Columns) -> Ranking:
    return ranking(fields, _prompt(fields, question(fields)), fields.first(RESPONSES))


def read_unpaired(fields: Columns) -> UnpairedExample:
    asked, answered = _asked_and_answered(fields)
    return judged(fields, _prompt(fields, asked), answered)


def read_chat_unpaired(fields: Columns) -> UnpairedExample:
    asked, answered = _ended(conversation(fields))
    return judged(fields, _prompt(fields, asked), answered)


def read_steps(fields: Columns) -> StepExample:
    """TRL's stepwise supervision: a list of steps and a list of judgements, true, false, a probability or null."""
    steps = values.listed(fields.get("completions"), "completions")
    labels = values.listed(fields.get("labels"), "labels")
    texts = tuple(values.text(step, f"completions[{place}]") for place, step in enumerate(steps))
    right = tuple(
        None if label is None else float(label) if isinstance(label, bool) else values.number(label, f"labels[{place}]")
        for place, label in enumerate(labels)
    )
    return StepExample(_prompt(fields, question(fields)), texts, right)


def read_prompt(fields: Columns) -> Prompt:
    """A question with whatever the reward may need: verl's ground truth, or a column that holds the answer."""
    many = any(fields.has(name) for name in CONVERSATIONS)
    messages = conversation(fields) if many else question(fields)
    if messages[-1].role == "assistant":
        messages = messages[:-1]
    if not messages:
        raise RowError("missing", "nothing is asked: the row has no message before the answer")
    return Prompt(fields.id, messages, _ground_truth(fields), fields.rest())


def _ground_truth(fields: Columns) -> str | None:
    rule = fields.row.get("reward_model")
    if isinstance(rule, Mapping) and rule.get("ground_truth") is not None:
        fields.read.add("reward_model")
        return str(rule["ground_truth"])
    for name in ("answer", "solution", "ground_truth", "label", "completion", "response", "output"):
        value = fields.row.get(name)
        if isinstance(value, str | int | float):
            fields.read.add(name)
            return values.text(str(value), name)
    return None


def read_extra(fields: Columns) -> Example:
    """verl's mathematics files keep the worked solution beside the prompt, in extra_info."""
    extra = fields.get("extra_info")
    if not isinstance(extra, Mapping) or extra.get("question") is None or extra.get("answer") is None:
        raise RowError("missing", "extra_info has no 'question' or no 'answer'; every row of this file needs both")
    asked = values.messages(extra["question"], "extra_info.question")
    return Example(fields.id, (*asked, *values.answer(extra["answer"], "extra_info.answer")))


def _has_extra(row: Mapping[str, Any]) -> bool:
    extra = row.get("extra_info")
    return isinstance(extra, Mapping) and extra.get("question") is not None and extra.get("answer") is not None


def _has_pair(row: Mapping[str, Any]) -> bool:
    return _any(row, ("chosen", "rejected"))


def _has_chat_pair(row: Mapping[str, Any]) -> bool:
    return _any(row, CONVERSATIONS) and _any(row, ("rejected_response", "rejected_messages"))


def _has_j_over_k(row: Mapping[str, Any]) -> bool:
    return _any(row, QUESTIONS) and _any(row, BETTER_AND_WORSE)


def _has_steps(row: Mapping[str, Any]) -> bool:
    lists = [row.get(name) for name in ("completions", "labels")]
    return _any(row, QUESTIONS) and all(isinstance(each, Sequence) and not isinstance(each, str) for each in lists)


def _answered_question(row: Mapping[str, Any]) -> bool:
    names = [name for name in (*QUESTIONS, *ANSWERS) if row.get(name) is not None]
    return _any(row, QUESTIONS) and any(name in ANSWERS for name in names)


def _ends_with_assistant(row: Mapping[str, Any]) -> bool:
    """Also where the end cannot be read: whoever reads the row then says what is wrong with it."""
    turns = _value(row, CONVERSATIONS)
    if turns is None:
        return False
    last = turns[-1] if isinstance(turns, Sequence) and turns else None
    if not isinstance(last, Mapping) or "assistant" in last:
        return True
    return values.ROLES.get(str(last.get("role") or last.get("from")), "assistant") == "assistant"


# From the most telling to the least: what can be read as a preference is not mistaken for a demonstration.
SCHEMAS = (
    Schema("chosen and rejected", "pairs", "TRL, OpenRLHF, ms-swift", _has_pair, read_pair),
    Schema("messages and a rejected response", "pairs", "ms-swift", _has_chat_pair, read_chat_pair),
    Schema("a question, response_j and response_k", "pairs", "StackExchange", _has_j_over_k, read_j_over_k),
    Schema("a question, its steps and their labels", "steps", "TRL", _has_steps, read_steps),
    Schema(
        *("a question and several answers", "rankings", "Ascent, UltraFeedback, Nectar"),
        fits=lambda row: _any(row, QUESTIONS) and isinstance(_value(row, RESPONSES), Sequence),
        read=read_ranking,
    ),
    Schema(
        *("a question, an answer and a thumb", "unpaired", "TRL, OpenRLHF"),
        fits=lambda row: _answered_question(row) and _is_thumb(row),
        read=read_unpaired,
    ),
    Schema(
        *("messages and a thumb", "unpaired", "ms-swift"),
        fits=lambda row: _ends_with_assistant(row) and _is_thumb(row),
        read=read_chat_unpaired,
    ),
    Schema(
        *("messages", "examples", "TRL, verl, OpenRLHF, ms-swift"),
        fits=lambda row: _ends_with_assistant(row) and not _is_thumb(row) and not _has_chat_pair(row),
        read=read_chat,
    ),
    Schema(
        *("a question and an answer", "examples", "TRL, verl, OpenRLHF, ms-swift"),
        fits=lambda row: _answered_question(row) and not _is_thumb(row),
        read=read_prompt_completion,
    ),
    Schema("plain text", "examples", "TRL", lambda row: row.get("text") is not None, read_text),
    Schema(
        *("a question", "prompts", "TRL, verl, OpenRLHF, ms-swift"),
        fits=lambda row: _any(row, QUESTIONS) or _any(row, CONVERSATIONS),
        read=read_prompt,
    ),
    Schema("extra_info with question and answer", "examples", "verl", _has_extra, read_extra),
    # Last, so for those alone who want thumbs: a label that is none is then told row by row.
    Schema(
        *("a question, an answer and a thumb", "unpaired", "TRL, OpenRLHF"),
        fits=lambda row: _answered_question(row) and _any(row, THUMB_COLUMNS),
        read=read_unpaired,
    ),
    Schema(
        *("messages and a thumb", "unpaired", "ms-swift"),
        fits=lambda row: _ends_with_assistant(row) and _any(row, THUMB_COLUMNS),
        read=read_chat_unpaired,
    ),
)
