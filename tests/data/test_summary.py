"""Numbers of `ascent inspect`."""

from __future__ import annotations

import pytest

from ascent.data import summary
from ascent.records import Example, Message, Pair, Prompt, Ranking, UnpairedExample

PROMPT = Prompt("p", (Message("user", "what"),))
A, B = (Message("assistant", "yes it is"),), (Message("assistant", "no"),)


def test_parts_and_lengths() -> None:
    records = [
        Pair(PROMPT, A, B),
        Example("e", (*PROMPT.messages, *A)),
        Example("t", A),
        UnpairedExample(PROMPT, B, False),
        Ranking(PROMPT, (A, B)),
        PROMPT,
    ]
    assert summary.lengths(records, len) == {
        "prompt": [4] * 5,
        "chosen": [9],
        "rejected": [2],
        "SFT": [9, 9],
        "bad": [2],
        "best": [9],
        "others": [2],
    }


def test_five_numbers() -> None:
    assert summary.summarize(list(range(1, 101))) == (100, 50.5, 50, 95, 100)
    assert summary.summarize([7]) == (1, 7.0, 7, 7, 7)


def test_bins_double() -> None:
    assert summary.histogram({"a": [0, 1, 2, 3, 9], "b": [3]}) == [
        (0, 0, {"a": 1, "b": 0}),
        (1, 1, {"a": 1, "b": 0}),
        (2, 3, {"a": 2, "b": 1}),
        (4, 7, {"a": 0, "b": 0}),
        (8, 15, {"a": 1, "b": 0}),
    ]


def test_copies_and_common_prompts() -> None:
    again = Prompt("other id", PROMPT.messages)
    records = [Pair(PROMPT, A, B), Pair(again, A, B), Pair(again, B, A), Example("t", A)]
    assert summary.count_duplicates(records) == (1, 2)
    assert (
        summary.count_shared_prompts(records, [again, Prompt("x", (Message("user", "new"),))]) == 1
    )
    assert summary.count_shared_prompts([Example("t", A)], [Example("t", A)]) == 0


def test_conversations_that_differ_in_a_tool_call_are_no_copies() -> None:
    calls = [Message("assistant", "", f'{{"tool_calls": [{n}]}}') for n in (1, 2, 2)]
    records = [Example(str(n), (*PROMPT.messages, call)) for n, call in enumerate(calls)]
    assert summary.count_duplicates(records) == (1, 2)


def test_length_bias() -> None:
    assert summary.chosen_longer_frac(
        [Pair(PROMPT, A, B), Pair(PROMPT, B, A), Pair(PROMPT, A, B)]
    ) == pytest.approx(2 / 3)
    assert summary.chosen_longer_frac([PROMPT]) is None
