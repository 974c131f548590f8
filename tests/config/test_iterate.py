"""Recipes of rounds: told from ordinary ones, and wrong keys named."""

from __future__ import annotations

import pytest

from ascent.config.iterate import iterate_config
from ascent.config.load import read_recipe
from ascent.plan.load import load_config

LEAST = {"rounds": 1, "sft": "m", "collect": {"prompts": "style:4"}, "policy": {"algorithm": "dpo"}}


def test_the_least_and_the_shipped():
    assert iterate_config(LEAST, "r").collect.annotator == "person"
    assert iterate_config(read_recipe("rlhf_iterated"), "r").rounds >= 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds": 0}, "r: rounds=0, but it must be at least 1"),
        ({"rounds": 10**30}, f"r: rounds=1{'0' * 30}, but it must be at most 1000"),
        (
            {"seed": 2**63 - 1},
            "r: seed=9223372036854775807, but it must be at most 9223372036854774807",
        ),
        (
            {"colect": {}},
            "r: colect is not a key of a recipe of ascent iterate; did you mean collect",
        ),
        (
            {"collect": {"prompts": "p", "samples": 1}},
            "r: collect.samples=1, but it must be at least 2",
        ),
    ],
)
def test_wrong_keys_are_named(change, words):
    with pytest.raises(ValueError, match=words):
        iterate_config(LEAST | change, "r")


def test_the_two_kinds_of_recipe_are_not_confused():
    with pytest.raises(
        ValueError, match="rlhf_iterated is a recipe of ascent iterate; run ascent iterate"
    ):
        load_config("rlhf_iterated")
    with pytest.raises(ValueError, match="sft is not a recipe of ascent iterate"):
        iterate_config(read_recipe("sft"), "sft")
