"""Stated conversions keep what records say."""

from __future__ import annotations

import itertools

import pytest

from ascent.data.convert import CONVERSIONS, converted
from ascent.records import Example, Judged, Message, Pair, Prompt, Ranking

PROMPT = Prompt("p", (Message("user", "q"),))
A, B, C = ((Message("assistant", word),) for word in "abc")
PAIR, RANKING = Pair(PROMPT, A, B), Ranking(PROMPT, (A, B, C))


def test_a_ranking_becomes_all_its_pairs() -> None:
    assert converted(RANKING, "rankings", "pairs") == [
        Pair(PROMPT, won, lost) for won, lost in itertools.combinations((A, B, C), 2)
    ]


def test_a_pair_as_ranking_thumbs_example_and_prompt() -> None:
    assert converted(PAIR, "pairs", "rankings") == [Ranking(PROMPT, (A, B))]
    assert converted(PAIR, "pairs", "unpaired") == [Judged(PROMPT, A, True), Judged(PROMPT, B, False)]
    assert converted(PAIR, "pairs", "examples") == [Example("p", (*PROMPT.messages, *A))]
    assert converted(PAIR, "pairs", "prompts") == [PROMPT]
    assert converted(RANKING, "rankings", "examples") == [Example("p", (*PROMPT.messages, *A))]


def test_the_same_kind_passes_through() -> None:
    assert converted(PAIR, "pairs", "pairs") == converted(PAIR, "pairs", None) == [PAIR]


@pytest.mark.parametrize("way", [("unpaired", "examples"), ("unpaired", "pairs"), ("examples", "pairs")])
def test_what_would_invent_or_hide_a_judgement_is_no_conversion(way: tuple[str, str]) -> None:
    assert way not in CONVERSIONS
