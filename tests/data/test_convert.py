"""Stated conversions keep what records say."""

from __future__ import annotations

import itertools

import pytest

from ascent.data.convert import CONVERSIONS, convert
from ascent.records import Example, Message, Pair, Prompt, Ranking, UnpairedExample

PROMPT = Prompt("p", (Message("user", "q"),))
A, B, C = ((Message("assistant", word),) for word in "abc")
PAIR, RANKING = Pair(PROMPT, A, B), Ranking(PROMPT, (A, B, C))


def test_a_ranking_becomes_all_its_pairs() -> None:
    assert convert(RANKING, "rankings", "pairs") == [
        Pair(PROMPT, won, lost) for won, lost in itertools.combinations((A, B, C), 2)
    ]


def test_tied_answers_are_no_pair() -> None:
    tied = Ranking(PROMPT, (A, B, C), (0, 1, 1))
    assert convert(tied, "rankings", "pairs") == [Pair(PROMPT, A, B), Pair(PROMPT, A, C)]


def test_a_pair_as_ranking_thumbs_example_and_prompt() -> None:
    assert convert(PAIR, "pairs", "rankings") == [Ranking(PROMPT, (A, B))]
    assert convert(PAIR, "pairs", "unpaired") == [
        UnpairedExample(PROMPT, A, True),
        UnpairedExample(PROMPT, B, False),
    ]
    assert convert(PAIR, "pairs", "examples") == [Example("p", (*PROMPT.messages, *A))]
    assert convert(PAIR, "pairs", "prompts") == [PROMPT]
    assert convert(RANKING, "rankings", "examples") == [Example("p", (*PROMPT.messages, *A))]


def test_the_same_kind_passes_through() -> None:
    assert convert(PAIR, "pairs", "pairs") == convert(PAIR, "pairs", None) == [PAIR]


@pytest.mark.parametrize(
    "way", [("unpaired", "examples"), ("unpaired", "pairs"), ("examples", "pairs")]
)
def test_what_would_invent_or_hide_a_judgement_is_no_conversion(way: tuple[str, str]) -> None:
    assert way not in CONVERSIONS
