"""A diagnosis as JSON and back, and as a line."""

from __future__ import annotations

import json

import pytest

from ascent.advice import KeyChange
from ascent.diagnose.records import Diagnosis, Finding, from_json

FINDING = Finding(
    "truncation",
    "Cut.",
    3,
    0.9,
    ("70% are cut",),
    (KeyChange("rollouts.max_new_tokens", "64", "twice"),),
    ("completion/truncated_frac",),
    ({"step": 1, "prompt": "p", "completion": "c", "reward": 0.0, "stop": "length"},),
)


def test_json_and_back() -> None:
    found = Diagnosis(
        "runs/a", 24, (FINDING,), "runs/a/diagnosis.png", ("runs/b: the same settings",)
    )
    assert from_json(found.to_json()) == found
    assert (
        json.loads(found.to_json())["findings"][0]["changes"][0]["key"] == "rollouts.max_new_tokens"
    )
    with pytest.raises(ValueError, match="another format"):
        from_json("{}")


def test_the_line() -> None:
    found = Diagnosis("runs/a", 24, (FINDING,))
    assert found.line() == (
        "diagnosis: truncation (sure) from step 3 on: 70% are cut; rollouts.max_new_tokens: 64 (twice)"
    )
    assert found.failed and found.cause == "truncation"
    assert Diagnosis("runs/a", 24, ()).line() == "diagnosis: nothing found wrong"
