"""Tools in training data: read from every layout, written by the chat template, and only the assistant is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from ascent.data.columns import Columns
from ascent.data.errors import RowError
from ascent.data.load import load
from ascent.data.prepare import Limits, prepare
from ascent.data.render import Renderer
from ascent.data.schemas import SCHEMAS, Record, read_record
from ascent.data.tools import template_input
from ascent.records import Example, Message, Pair, Prompt
from tests.data import chat

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
WRITTEN = '{"name": "add", "arguments": {"a": 1}}'
ASK = {"role": "user", "content": "what is 1 + 2"}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
REPLY = {"role": "tool", "content": "3", "name": "add", "tool_call_id": "c1"}
DONE = {"role": "assistant", "content": "it is 3"}
CHAT = [ASK, CALLING, REPLY, DONE]
ABLE = Renderer(chat.tokenizer(chat.TOOLS))


def read(row: dict[str, Any]) -> Record:
    return read_record(next(each for each in SCHEMAS if each.fits(row)), Columns("id", row))


def trained(renderer: Renderer, rendered: Any) -> str:
    return str(renderer.tokenizer.decode(rendered.tokens[rendered.loss_mask].tolist()))


def test_calls_and_answers_are_trained_and_nothing_else() -> None:
    record = read({"messages": CHAT, "tools": [TOOL]})
    assert isinstance(record, Example)
    rendered = ABLE.example(record.messages)
    assert trained(ABLE, rendered) == f"{WRITTEN}<|eos|>it is 3<|end|>"
    text = ABLE.tokenizer.decode(rendered.tokens.tolist())
    assert text.startswith(f"<|start|>system\n{json.dumps([TOOL])}<|end|>\n<|start|>user\n")
    assert "<|start|>tool add\n3<|end|>" in text
    last = Renderer(chat.tokenizer(chat.TOOLS), train_on="completion").example(record.messages)
    assert trained(ABLE, last) == "it is 3<|end|>"


def test_tokens_are_the_templates_own() -> None:
    record = read({"messages": CHAT, "tools": [TOOL]})
    assert isinstance(record, Example)
    turns, tools = template_input(record.messages)
    assert tools == [TOOL]
    assert turns[1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}
    theirs = ABLE.tokenizer.apply_chat_template(
        turns, tools=tools, tokenize=True, return_dict=False
    )
    ours = ABLE.example(record.messages).tokens.tolist()
    # Prompt and answers are tokenized separately, and what follows the last answer's end is dropped.
    assert ABLE.tokenizer.decode(ours) + "\n" == ABLE.tokenizer.decode(theirs)


@pytest.mark.parametrize(
    "call",
    [
        {"function": {"name": "add", "arguments": '{"a": 1}'}},  # OpenAI: arguments are text
        {"name": "add", "arguments": {"a": 1}},
        {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}},
    ],
)
def test_every_way_to_write_a_call(call: dict[str, Any]) -> None:
    for calls in ([call], json.dumps([call])):
        record = read(
            {"messages": [ASK, {**CALLING, "tool_calls": calls}], "tools": json.dumps([TOOL])}
        )
        assert isinstance(record, Example)
        assert trained(ABLE, ABLE.example(record.messages)) == f"{WRITTEN}<|eos|>"


@pytest.mark.parametrize(
    "row",
    [
        {
            "prompt": [ASK],
            "chosen": [CALLING, REPLY, DONE],
            "rejected": [{"role": "assistant", "content": "4"}],
        },
        {"chosen": CHAT, "rejected": [ASK, {"role": "assistant", "content": "4"}]},
        {"messages": [*CHAT[:1], CALLING], "rejected_response": "4"},
    ],
)
def test_pairs(row: dict[str, Any]) -> None:
    pair = read({**row, "tools": [TOOL]})
    assert isinstance(pair, Pair)
    chosen, rejected = (
        ABLE.answer(pair.prompt.messages, each) for each in (pair.chosen, pair.rejected)
    )
    assert trained(ABLE, chosen).startswith(f"{WRITTEN}<|eos|>")
    assert trained(ABLE, rejected) == "4<|end|>"
    assert (
        chosen.tokens[: chosen.prompt_length].tolist()
        == rejected.tokens[: rejected.prompt_length].tolist()
    )
    assert chosen.tokens[: chosen.prompt_length].tolist() == list(ABLE.prompt(pair.prompt.messages))
    assert "add" in ABLE.tokenizer.decode(chosen.tokens[: chosen.prompt_length].tolist())


def test_pairs_that_differ_in_a_call_are_a_preference() -> None:
    other = {**CALL, "function": {"name": "add", "arguments": {"a": 2}}}
    pair = read(
        {"prompt": "q", "chosen": [CALLING], "rejected": [{**CALLING, "tool_calls": [other]}]}
    )
    assert isinstance(pair, Pair) and pair.chosen != pair.rejected
    with pytest.raises(RowError, match="chosen equals rejected"):
        read({"prompt": "q", "chosen": [CALLING], "rejected": [CALLING]})


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_files(suffix: str, tmp_path: Path) -> None:
    """A table fills the keys that a row's tool does not have with null; they are no part of it."""
    second = {
        "type": "function",
        "function": {"name": "now", "parameters": {"type": "object", "required": ["zone"]}},
    }
    rows = [{"messages": CHAT, "tools": [TOOL]}, {"messages": CHAT, "tools": [second]}]
    if suffix != "jsonl":
        rows = [{name: json.dumps(value) for name, value in row.items()} for row in rows]
    path = tmp_path / f"data.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif suffix == "csv":
        datasets.Dataset.from_list(rows).to_csv(str(path))
    else:
        typed = [
            {"messages": CHAT, "tools": json.dumps([TOOL])},
            {"messages": CHAT, "tools": json.dumps([second])},
        ]
        datasets.Dataset.from_list(typed).to_parquet(str(path))
    loaded = load(str(path), "examples")
    items = prepare(loaded, ABLE, Limits()).items
    assert [trained(ABLE, item.sequences[0]) for item in items] == [
        f"{WRITTEN}<|eos|>it is 3<|end|>"
    ] * 2
    texts = [ABLE.tokenizer.decode(item.sequences[0].tokens.tolist()) for item in items]
    assert json.dumps([TOOL]) in texts[0] and json.dumps([second]) in texts[1]


def test_null_keys_of_a_table_are_dropped(tmp_path: Path) -> None:
    other = {
        **CALLING,
        "tool_calls": [{**CALL, "function": {"name": "now", "arguments": {"zone": "UTC"}}}],
    }
    rows = [
        {"messages": [ASK, CALLING], "tools": [TOOL]},
        {"messages": [ASK, other], "tools": [TOOL]},
    ]
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "data.parquet"))
    items = prepare(load(str(tmp_path / "data.parquet"), "examples"), ABLE, Limits()).items
    written = [trained(ABLE, item.sequences[0]) for item in items]
    assert written == [f"{WRITTEN}<|eos|>", '{"name": "now", "arguments": {"zone": "UTC"}}<|eos|>']
    padded = {"type": "function", "strict": None, "function": {**TOOL["function"], "returns": None}}  # type: ignore[dict-item]
    record = read({"messages": CHAT, "tools": [padded]})
    assert isinstance(record, Example)
    assert template_input(record.messages)[1] == [TOOL]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "tools need a chat template, and this tokenizer has none"),
        (
            chat.CHATML,
            "does not write the tools on offer and tool calls; use a model whose chat template has tools",
        ),
        (
            "{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + chat.CHATML,
            "tools cannot be rendered: .*no",
        ),
    ],
)
def test_a_template_without_tools_is_refused(template: str | None, words: str) -> None:
    record = read({"messages": CHAT, "tools": [TOOL]})
    assert isinstance(record, Example)
    with pytest.raises(RowError, match=words):
        Renderer(chat.tokenizer(template)).example(record.messages)


def test_replies_of_tools_are_no_reason_to_refuse_by_themselves() -> None:
    """A conversation without calls is text like any other, as before."""
    record = read({"messages": [ASK, {"role": "tool", "content": "3"}, DONE]})
    assert isinstance(record, Example)
    assert trained(ABLE, Renderer(chat.tokenizer()).example(record.messages)) == "it is 3<|end|>"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"messages": [{**ASK, "tool_calls": [CALL]}, DONE]},
            "its role is user; only the assistant calls tools",
        ),
        (
            {"messages": [ASK, {**CALLING, "tool_calls": [{"function": {}}]}]},
            r"tool_calls\[0\] is .*a tool call is",
        ),
        (
            {"messages": [ASK, {**CALLING, "tool_calls": "add(1)"}]},
            "tool_calls is text that is not JSON",
        ),
        (
            {"messages": [ASK, {**CALLING, "tool_calls": [{"name": "add", "arguments": "{"}]}]},
            "arguments are not JSON",
        ),
        (
            {"messages": [ASK, {**CALLING, "tool_calls": [{"name": "add", "arguments": [1]}]}]},
            "must be an object",
        ),
        ({"messages": [ASK, {"role": "assistant", "content": None}]}, "no 'content'"),
        ({"messages": CHAT, "tools": {"add": 1}}, "tools is .* but it must be a list"),
        ({"messages": CHAT, "tools": ["add"]}, r"tools\[0\] is 'add', but a tool is"),
        ({"text": "hello", "tools": [TOOL]}, "plain text offers no tools"),
    ],
)
def test_bad_values(row: dict[str, Any], words: str) -> None:
    with pytest.raises(RowError, match=words):
        read(row)


def test_control_tokens_inside_calls_are_refused() -> None:
    sly = {"name": "add", "arguments": {"a": "1<|end|>"}}
    record = read({"messages": [ASK, {**CALLING, "tool_calls": [sly]}]})
    assert isinstance(record, Example)
    with pytest.raises(RowError, match="reads as a control token"):
        ABLE.example(record.messages)


def test_a_message_without_tools_looks_as_before() -> None:
    assert repr(Message("user", "hi")) == "Message(role='user', content='hi')"


def test_a_sampler_is_shown_the_tools() -> None:
    prompt = read({"prompt": [ASK], "tools": [TOOL]})
    assert isinstance(prompt, Prompt)
    assert ABLE.tokenizer.decode(list(ABLE.prompt(prompt.messages))) == (
        f"<|start|>system\n{json.dumps([TOOL])}<|end|>\n<|start|>user\n{ASK['content']}<|end|>\n<|start|>assistant\n"
    )
