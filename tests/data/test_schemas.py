"""The column layouts of the peers, row by row: what each becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

import ascent
from ascent.data.columns import Columns
from ascent.data.convert import detect_schema
from ascent.data.errors import RowError
from ascent.data.schemas import SCHEMAS, Record
from ascent.records import Example, Message, Pair, Prompt, Ranking, StepExample, UnpairedExample

U, A = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
B = {"role": "assistant", "content": "b"}
SYSTEM = {"role": "system", "content": "s"}
ASKED, ANSWERED, OTHER = Message("user", "q"), Message("assistant", "a"), Message("assistant", "b")
SAID = Message("system", "s")
PROMPT = Prompt("id", (ASKED,))
PARTS = [{"type": "text", "text": "first, "}, {"type": "text", "text": "second"}]

CASES: list[tuple[str, dict[str, Any], Any]] = [
    # TRL
    ("examples", {"messages": [U, A]}, Example("id", (ASKED, ANSWERED))),
    (
        "examples",
        {"messages": [{"role": "user", "content": PARTS}, A]},
        Example("id", (Message("user", "first, second"), ANSWERED)),
    ),
    ("examples", {"prompt": "q", "completion": "a"}, Example("id", (ASKED, ANSWERED))),
    ("examples", {"prompt": [U], "completion": [A]}, Example("id", (ASKED, ANSWERED))),
    ("examples", {"text": "a"}, Example("id", (ANSWERED,))),
    ("pairs", {"prompt": "q", "chosen": "a", "rejected": "b"}, Pair(PROMPT, (ANSWERED,), (OTHER,))),
    ("pairs", {"prompt": [U], "chosen": [A], "rejected": [B]}, Pair(PROMPT, (ANSWERED,), (OTHER,))),
    ("pairs", {"chosen": [U, A], "rejected": [U, B]}, Pair(PROMPT, (ANSWERED,), (OTHER,))),
    (
        "pairs",
        {"prompt": "q", "chosen": [U, A], "rejected": [U, B]},
        Pair(PROMPT, (ANSWERED,), (OTHER,)),
    ),
    (
        "unpaired",
        {"prompt": "q", "completion": "a", "label": True},
        UnpairedExample(PROMPT, (ANSWERED,), True),
    ),
    (
        "pairs",
        {"prompt": "q", "chosen": "a", "rejected": "b", "reference": "g"},
        Pair(Prompt("id", (ASKED,), "g"), (ANSWERED,), (OTHER,)),
    ),
    (
        "pairs",
        {"chosen": [U, A], "rejected": [U, B], "gold": [U, A]},
        Pair(Prompt("id", (ASKED,), "a"), (ANSWERED,), (OTHER,)),
    ),
    (
        "steps",
        {"prompt": "q", "completions": ["a", "b"], "labels": [True, False]},
        StepExample(PROMPT, ("a", "b"), (1.0, 0.0)),
    ),
    (
        "steps",
        {"problem": "q", "completions": ["a", "b", "c"], "labels": [0.75, None, 0]},
        StepExample(PROMPT, ("a", "b", "c"), (0.75, None, 0.0)),
    ),
    ("prompts", {"prompt": "q"}, PROMPT),
    # verl
    (
        "prompts",
        {
            "prompt": [U],
            "data_source": "d",
            "reward_model": {"style": "rule", "ground_truth": "7"},
            "ability": None,
        },
        Prompt("id", (ASKED,), "7", {"data_source": "d"}),
    ),
    (
        "examples",
        {"extra_info": {"question": "q", "answer": "a"}, "prompt": [U]},
        Example("id", (ASKED, ANSWERED)),
    ),
    ("examples", {"question": "q", "answer": "a"}, Example("id", (ASKED, ANSWERED))),
    # OpenRLHF
    ("examples", {"input": "q", "output": "a"}, Example("id", (ASKED, ANSWERED))),
    ("prompts", {"input": "q", "label": "7"}, Prompt("id", (ASKED,), "7")),
    (
        "unpaired",
        {"instruction": "q", "response": "a", "score": 0.0},
        UnpairedExample(PROMPT, (ANSWERED,), False),
    ),
    (
        "pairs",
        {"prompt": "q", "chosen": "a", "rejected": "b", "margin": 2},
        Pair(PROMPT, (ANSWERED,), (OTHER,), margin=2.0),
    ),
    # ms-swift
    (
        "examples",
        {"system": "s", "query": "q", "response": "b", "history": [["q", "a"]]},
        Example("id", (SAID, ASKED, ANSWERED, ASKED, OTHER)),
    ),
    (
        "examples",
        {"instruction": "do", "input": "this", "output": "a"},
        Example("id", (Message("user", "do\nthis"), ANSWERED)),
    ),
    (
        "examples",
        {
            "system": "s",
            "conversation": [{"human": "q", "assistant": "a"}, {"human": "q", "assistant": "b"}],
        },
        Example("id", (SAID, ASKED, ANSWERED, ASKED, OTHER)),
    ),
    (
        "examples",
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        Example("id", (ASKED, ANSWERED)),
    ),
    (
        "pairs",
        {"messages": [SYSTEM, U, A], "rejected_response": "b"},
        Pair(Prompt("id", (SAID, ASKED)), (ANSWERED,), (OTHER,)),
    ),
    (
        "pairs",
        {"messages": [U, A], "rejected_messages": [U, B]},
        Pair(PROMPT, (ANSWERED,), (OTHER,)),
    ),
    ("unpaired", {"messages": [U, A], "label": False}, UnpairedExample(PROMPT, (ANSWERED,), False)),
    ("prompts", {"messages": [U], "solution": "7"}, Prompt("id", (ASKED,), "7")),
    # rankings and ratings
    ("rankings", {"prompt": "q", "ranked": ["a", "b"]}, Ranking(PROMPT, ((ANSWERED,), (OTHER,)))),
    (
        "rankings",
        {"prompt": "q", "responses": ["b", "a"], "ratings": [1, 2.5]},
        Ranking(PROMPT, ((ANSWERED,), (OTHER,))),
    ),
    (
        "rankings",
        {"prompt": "q", "responses": ["b", "a"], "ranks": [2, 1]},
        Ranking(PROMPT, ((ANSWERED,), (OTHER,))),
    ),
    (
        "rankings",
        {
            "instruction": "q",
            "completions": [
                {"response": "b", "overall_score": 3},
                {"response": "a", "overall_score": 8},
            ],
        },
        Ranking(PROMPT, ((ANSWERED,), (OTHER,))),
    ),
    (
        "rankings",
        {"prompt": "q", "answers": [{"answer": "b", "rank": 7}, {"answer": "a", "rank": 1}]},
        Ranking(PROMPT, ((ANSWERED,), (OTHER,))),
    ),
    # Anthropic's transcripts
    (
        "pairs",
        {"chosen": "\n\nHuman: q\n\nAssistant: a", "rejected": "\n\nHuman: q\n\nAssistant: b"},
        Pair(PROMPT, (ANSWERED,), (OTHER,)),
    ),
]


def read(row: dict[str, Any], want: Any = None) -> Record:
    return detect_schema(row, want).read(Columns("id", row))


@pytest.mark.parametrize(
    ("kind", "row", "record"),
    CASES,
    ids=lambda case: ",".join(case) if isinstance(case, dict) else "",
)
def test_layouts(kind: str, row: dict[str, Any], record: Record) -> None:
    assert detect_schema(row, kind).kind == kind  # type: ignore[arg-type]
    assert read(row, kind) == record


@pytest.mark.parametrize(
    ("kind", "row", "record"), [case for case in CASES if "extra_info" not in case[1]]
)
def test_layouts_are_recognized_without_a_hint(
    kind: str, row: dict[str, Any], record: Record
) -> None:
    assert detect_schema(row).kind == kind


def test_the_same_columns_as_a_prompt_and_as_an_example() -> None:
    row = {"problem": "q", "solution": "a", "answer": "7"}
    assert read(row, "examples") == Example("id", (ASKED, ANSWERED))
    assert read(row, "prompts") == Prompt("id", (ASKED,), "7", {"solution": "a"})


def test_an_answered_conversation_is_a_prompt_without_its_answer() -> None:
    assert read({"messages": [U, A]}, "prompts") == Prompt("id", (ASKED,))


def test_thumbs_are_not_imitated() -> None:
    """Half of them are bad answers."""
    for row in (
        {"prompt": "q", "completion": "a", "label": False},
        {"messages": [U, A], "label": True},
    ):
        with pytest.raises(ValueError, match=r"this is unpaired .* cannot be used as examples"):
            detect_schema(row, "examples")


def test_unknown_columns_are_told_what_would_fit() -> None:
    with pytest.raises(
        ValueError,
        match="columns foo fit no known schema; rename them to one of: pairs: chosen and rej",
    ):
        detect_schema({"foo": 1}, "pairs")
    with pytest.raises(ValueError, match="want='pears'"):
        detect_schema({"prompt": "q"}, "pears")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "kind", "words"),
    [
        ({"messages": [U, U]}, "missing", "last message is the user's"),
        ({"messages": [U, {"role": "robot", "content": "a"}, A]}, "type", "role 'robot'"),
        ({"messages": [U, {"role": "assistant", "content": None}, A]}, "missing", "no 'content'"),
        (
            {"messages": [U, {**A, "tool_calls": [1]}]},
            "type",
            r"tool_calls\[0\] is 1, but a tool call is",
        ),
        ({"messages": [U, {**A, "loss": False}, A]}, "type", "has 'loss'"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}, A]}, "type", "not text"),
        ({"prompt": "q", "completion": 3}, "type", "completion is int 3"),
        ({"prompt": "q", "chosen": "a", "rejected": "a"}, "equal", "chosen equals rejected"),
        ({"chosen": "a", "rejected": "b"}, "missing", "no prompt"),
        (
            {"chosen": [U, A], "rejected": [{"role": "user", "content": "z"}, B]},
            "type",
            "the user's turn",
        ),
        ({"chosen": [U, A], "rejected": [U, A, U, B]}, "type", "beginning of the other"),
        (
            {"prompt": "q", "chosen": "a", "rejected": "b", "margin": "wide"},
            "type",
            "margin is str 'wide'",
        ),
        ({"prompt": "q", "responses": ["a", "b"], "ratings": [1]}, "type", "2 answers but 1 ranks"),
        ({"prompt": "q", "responses": ["a", "b"], "ratings": [1, float("nan")]}, "type", "finite"),
        ({"prompt": "q", "responses": ["a", "b"], "ratings": [1, 1]}, "equal", "same rating"),
        ({"prompt": "q", "responses": ["a", "a"], "ratings": [1, 2]}, "equal", "same answer twice"),
        ({"prompt": "q", "responses": ["a", "b"]}, "missing", "has no order"),
        ({"prompt": "q", "ranked": ["a"]}, "missing", "1 answer"),
        ({"query": "q", "response": "a", "history": [["x"]]}, "type", "1 entries"),
        ({"prompt": "q", "completion": "a\ud800"}, "encoding", "not UTF-8 near character 1"),
    ],
)
def test_bad_values(row: dict[str, Any], kind: str, words: str) -> None:
    with pytest.raises(RowError, match=words) as caught:
        layout = next(each for each in SCHEMAS if each.fits(row))
        if "messages" in row:
            layout = next(each for each in SCHEMAS if each.name == "messages")
        layout.read(Columns("id", row))
    assert caught.value.kind == kind


CHATTY = json.dumps([U, A])


@pytest.mark.parametrize(
    ("row", "record"),
    [
        (
            {"prompt": json.dumps([U]), "completion": json.dumps([A])},
            Example("id", (ASKED, ANSWERED)),
        ),
        (
            {"question": json.dumps([U], indent=1), "response": f" {json.dumps([A])}"},
            Example("id", (ASKED, ANSWERED)),
        ),
        (
            {"prompt": '[{"from": "human", "value": "q"}]', "output": "a"},
            Example("id", (ASKED, ANSWERED)),
        ),
        (
            {"prompt": '[{"content": "q", "role": "user"}]', "output": "a"},
            Example("id", (ASKED, ANSWERED)),
        ),
        ({"messages": CHATTY}, Example("id", (ASKED, ANSWERED))),
        ({"chosen": CHATTY, "rejected": json.dumps([U, B])}, Pair(PROMPT, (ANSWERED,), (OTHER,))),
        (
            {"messages": CHATTY, "rejected_messages": json.dumps([U, B])},
            Pair(PROMPT, (ANSWERED,), (OTHER,)),
        ),
        (
            {"prompt": "q", "response_j": json.dumps([A]), "response_k": "b"},
            Pair(PROMPT, (ANSWERED,), (OTHER,)),
        ),
    ],
)
def test_messages_written_as_json_text_are_messages(row: dict[str, Any], record: Record) -> None:
    assert read(row) == record


@pytest.mark.parametrize(
    "text",
    [
        str([U]),
        str([B, U]),
        " [{'content': 'q', 'role': 'user'}\n {'content': 'a', 'role': 'assistant'}]",  # of numpy
        "[{'from': 'human', 'value': 'q'}]",
        CHATTY[:-1],
        CHATTY[:-9],
    ],
)
def test_messages_written_as_other_text_are_refused(text: str) -> None:
    """They would be trained on literally."""
    words = "looks like a list of messages written as text, but it is not JSON: .* write it with json.dumps"
    for row in (
        {"prompt": text, "completion": "a"},
        {"prompt": "q", "completion": text},
        {"messages": text},
    ):
        with pytest.raises(RowError, match=words) as caught:
            read(row, "examples")
        assert caught.value.kind == "syntax"
    with pytest.raises(RowError, match=f"^chosen {words}"):
        read({"prompt": "q", "chosen": text, "rejected": "b"})


@pytest.mark.parametrize(
    "text",
    [
        CHATTY + "\nWhat is wrong with this request?",
        str([U]) + " is a list",
        "This is a request: " + CHATTY,
        '[{"role": "admin", "rights": ["read"]}]',
        '[{"from": "Rome", "to": "Oslo", "value": 3}]',
        "[{'from': 'Rome', 'to': 'Oslo', 'value': 3}]",
        '[{"name": "a"}',
        "[1, 2]",
    ],
)
def test_other_text_about_lists_stays_text(text: str) -> None:
    expected = Example("id", (Message("user", text), Message("assistant", text)))
    assert read({"prompt": text, "completion": text}) == expected
    assert read({"messages": [{**U, "content": CHATTY}, {**A, "content": str([U])}]}) == Example(
        "id", (Message("user", CHATTY), Message("assistant", str([U])))
    )


KIND = {"role": "system", "content": "Be kind."}
BLANK = {"role": "system", "content": ""}
KIND_PROMPT = Prompt("id", (Message("system", "Be kind."), ASKED))


def both(*turns: dict[str, Any]) -> dict[str, Any]:
    return {"chosen": [*turns, A], "rejected": [*turns, B]}


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"prompt": "q\n", **both(U)}, Prompt("id", (Message("user", "q\n"),))),
        ({"prompt": "q", **both({**U, "content": " q"})}, PROMPT),
        ({"prompt": "q", **both(KIND, U)}, KIND_PROMPT),
        ({"prompt": "q", "system": "Be kind.", **both(KIND, U)}, KIND_PROMPT),
        ({"prompt": "q", "system": "Be kind.", **both(BLANK, U)}, KIND_PROMPT),
        ({"prompt": "q", "system": "Be kind.", **both(U)}, KIND_PROMPT),
        ({"system": "Be kind.", **both(KIND, U)}, KIND_PROMPT),
        ({"system": "Be kind.", **both(U)}, KIND_PROMPT),
        ({"prompt": [KIND, U], **both(U)}, KIND_PROMPT),
        ({"prompt": "q", "chosen": [KIND, U, A], "rejected": [U, B]}, KIND_PROMPT),
        ({"prompt": "q", "chosen": "a", "rejected": [KIND, U, B]}, KIND_PROMPT),
        # An empty system message is kept where there is no other: some templates write a text of their own without it.
        (
            {"system": "", "question": "q", **both(BLANK, U)},
            Prompt("id", (Message("system", ""), ASKED)),
        ),
        ({"prompt": "q", "chosen": "\n\nHuman: q\n\nAssistant: a", "rejected": "b"}, PROMPT),
        # Turns that go on where the prompt ends.
        (
            {"prompt": [U, B], **both({**U, "content": "more"})},
            Prompt("id", (ASKED, OTHER, Message("user", "more"))),
        ),
        ({"messages": [U, A], "system": "Be kind.", "rejected_messages": [U, B]}, KIND_PROMPT),
        ({"messages": [U, A], "rejected_messages": [KIND, U, B]}, KIND_PROMPT),
        ({"messages": [U, A], "rejected_messages": [B]}, PROMPT),
    ],
)
def test_a_prompt_that_answers_repeat_is_there_once(row: dict[str, Any], prompt: Prompt) -> None:
    assert read(row) == Pair(prompt, (ANSWERED,), (OTHER,))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"prompt": "Q", **both(U)},
            "chosen is a conversation that does not begin with the prompt of its row, 'Q'",
        ),
        (
            {"prompt": [KIND, U], **both({**KIND, "content": "Be brief."}, U)},
            "chosen has another system message than",
        ),
        (
            {"prompt": "q", "chosen": [U, A], "rejected": [KIND, {**U, "content": "z"}, B]},
            "rejected is a conversation",
        ),
        (
            {"messages": [U, A], "rejected_messages": [{**U, "content": "z"}, B]},
            "rejected is a conversation that does",
        ),
        (
            {"prompt": [U, A], **both(U, {**A, "content": "other"}, U)},
            "chosen is a conversation that does not begin",
        ),
    ],
)
def test_a_conversation_with_another_prompt_is_refused(row: dict[str, Any], words: str) -> None:
    with pytest.raises(RowError, match=words) as caught:
        read(row)
    assert caught.value.kind == "type"


GREETING = {"role": "assistant", "content": "Welcome!"}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [GREETING, U], "chosen": [GREETING, U, A], "rejected": [GREETING, U, B]},
        {"messages": [GREETING, U, A], "rejected_messages": [GREETING, U, B]},
        {
            "messages": [GREETING, U, A],
            "rejected_messages": [GREETING, {**U, "content": f"{U['content']} "}, B],
        },
    ],
)
def test_a_conversation_that_the_assistant_starts_is_there_once(row: dict[str, Any]) -> None:
    pair = read(row)
    assert isinstance(pair, Pair)
    assert [each.content for each in pair.prompt.messages] == ["Welcome!", U["content"]]
    assert (pair.chosen, pair.rejected) == ((ANSWERED,), (OTHER,))


def test_white_space_in_a_shared_turn_is_no_difference_of_the_answers() -> None:
    pair = read(
        {
            "messages": [U, A, U, A],
            "rejected_messages": [U, {**A, "content": f"{A['content']} "}, U, B],
        }
    )
    assert isinstance(pair, Pair)
    assert len(pair.prompt.messages) == 3 and (pair.chosen, pair.rejected) == (
        (ANSWERED,),
        (OTHER,),
    )


def test_rejected_messages_may_differ_before_the_last_answer() -> None:
    pair = read({"messages": [U, A, U, A], "rejected_messages": [U, B, U, A]})
    assert pair == Pair(PROMPT, (ANSWERED, ASKED, ANSWERED), (OTHER, ASKED, ANSWERED))


def test_columns_that_change_the_meaning_are_refused() -> None:
    fields = Columns("id", {"messages": [U, A], "images": ["a.png"]})
    with pytest.raises(RowError, match="column 'images' is set"):
        fields.check_text_only()
    Columns("id", {"messages": [U, A], "images": [], "tools": None}).check_text_only()


def test_a_list_is_no_ground_truth_and_no_later_column_stands_for_it() -> None:
    (found,) = ascent.load_data([{"question": "q", "answer": ["7"], "label": "easy"}], "prompts")
    assert found.answer is None and found.columns["answer"] == ["7"]
    (null,) = ascent.load_data([{"question": "q", "answer": None, "label": "7"}], "prompts")
    assert null.answer == "7"
