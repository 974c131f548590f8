"""Completions: in order, reproducible, greedy ones equal."""

from __future__ import annotations

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
