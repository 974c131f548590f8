"""Completions: in order, reproducible, greedy ones equal."""

from __future__ import annotations

from typing import Any

import pytest

from ascent.api.sample import sample
from ascent.models.tiny import create


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(create(tmp_path_factory.mktemp("models") / "tiny", seed=0))


def test_samples_are_reproducible_and_greedy_ones_do_not_differ(model: str) -> None:
    first = list(sample(model, ["1+1=", "2+2="], samples=2, max_new_tokens=4, seed=5))
    assert first == list(sample(model, ["1+1=", "2+2="], samples=2, max_new_tokens=4, seed=5))
    assert [each.prompt for each in first] == ["1+1=", "1+1=", "2+2=", "2+2="]
    assert all(0 < each.tokens <= 4 and each.stop for each in first)
    greedy = list(sample(model, ["1+1="], samples=2, max_new_tokens=4, greedy=True))
    assert greedy[0] == greedy[1]


def test_no_prompt_is_refused_before_the_model_is_loaded() -> None:
    with pytest.raises(ValueError, match="sample needs a prompt"):
        list(sample("nowhere", []))


@pytest.mark.parametrize(
    ("prompts", "samples", "words"),
    [
        ("1+1=", 1, "whose characters would be prompts; give a list of texts"),
        (["1+1="], 0, "it must be at least 1"),
    ],
)
def test_wrong_calls(prompts: Any, samples: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        list(sample("tiny:llama", prompts, samples=samples))


def test_prompts_may_come_one_by_one(model: str) -> None:
    asked = ["1+1=", "2+2="]
    found = [
        list(sample(model, each, max_new_tokens=2)) for each in (asked, (text for text in asked))
    ]  # type: ignore[arg-type]
    assert found[0] == found[1] and len(found[0]) == 2
