"""The keys that a policy reads, checked as in a recipe."""

from __future__ import annotations

import pytest

from ascent.api.policy_config import KEYS, policy_config
from ascent.config.schema import leaves
from ascent.models.dtype import default_dtype

GIVEN = {"algorithm": "grpo", "data.train": "-", "model.policy": "p", "model.lora": None}


def test_overrides_replace_what_is_given_and_the_rest_has_the_schemas_default() -> None:
    config = policy_config(GIVEN | {"model.lora": 4}, ["model.lora=8", "update.adam_eps=1e-5"])
    assert (config.model.lora, config.update.adam_eps, config.rollouts.temperature) == (
        8,
        1e-5,
        1.0,
    )
    assert (
        config.model.dtype
        == policy_config(GIVEN, ["model.dtype=auto"]).model.dtype
        == default_dtype()
    )


def test_every_key_is_in_the_schema() -> None:
    assert set(leaves()) >= KEYS


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "run.steps=3",
            r"run\.steps has no effect on a policy: the loop decides it; keys with an effect: model\.arithmetic, ",
        ),
        ("update.lr=1", r"update\.lr is not a key; did you mean update\.learning_rate"),
        ("update.weight_decay=2", "it must be at most 1"),
    ],
)
def test_wrong_keys(override: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        policy_config(GIVEN, [override])
