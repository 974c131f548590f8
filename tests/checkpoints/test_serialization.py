"""Cutting a state into JSON and tensors, and back."""

from __future__ import annotations

import json
import math

import pytest
import torch

from ascent.checkpoints.serialization import join, split


def test_a_state_is_cut_and_put_together() -> None:
    tensor = torch.tensor([1.0, 2.0])
    state = {
        "a": {"b": [tensor, {"c": None}]},
        "n": 2**70,
        "f": 0.1,
        "t": True,
        "bad": [math.inf, -math.inf],
        "w": "é",
    }
    plain, tensors = split(state)
    assert tensors.keys() == {"a/b/0"}
    again = join(json.loads(json.dumps(plain, allow_nan=False)), tensors)
    assert again["a"]["b"][0] is tensors["a/b/0"]
    assert {**again, "a": None} == {**state, "a": None}
    assert math.isnan(join(split({"x": math.nan})[0], {})["x"])


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"a": {1: 2}}, r"key 1 at 'a' of the state"),
        ({"$tensor": 1}, r"key '\$tensor' at 'the top'"),
        ({"a": [object()]}, "'a/0' in the state is a object"),
        (
            {"a/b": torch.ones(1), "a": {"b": torch.ones(1)}},
            "two tensors of the state would both be called 'a/b'",
        ),
    ],
)
def test_what_cannot_be_saved_is_named(state: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        split(state)
