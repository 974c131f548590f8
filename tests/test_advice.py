"""Advice names keys that exist, for causes that are diagnosed, and warnings give the same as the diagnosis."""

from __future__ import annotations

from typing import Any

import pytest

from ascent.advice import ADVICE, advice_text, changes, multiply
from ascent.config.schema import Config
from ascent.diagnose.table import CAUSES
from ascent.runs.warnings import RULES


def exists(key: str) -> bool:
    """In the schema; what follows the name of a cell is the cell's own."""
    model: Any = Config
    for name in key.split("."):
        if name not in model.model_fields:
            return False
        if name == "cells":
            return key.split(".")[1] in model.model_fields[name].annotation.model_fields
        model = model.model_fields[name].annotation
    return True


@pytest.mark.parametrize("cause", ADVICE)
def test_causes_and_keys_exist(cause: str) -> None:
    assert cause in CAUSES or any(each.startswith(cause) for each in CAUSES)
    for each in ADVICE[cause]:
        assert each.value or each.times, each
        assert exists(each.key), each.key


def test_numbers_are_those_of_the_run() -> None:
    rate, *_ = changes("learning_rate_too_high", {"update.learning_rate": 1e-3})
    assert (rate.key, rate.value) == ("update.learning_rate", "0.0001")
    assert [multiply(value, 2) for value in (16, 0.5, None)] == ["32", "1", "higher"]
    assert multiply("auto", 0.1) == "lower"


def test_warnings_give_the_advice_of_the_diagnosis() -> None:
    fixes = {rule.name: rule.fix for rule in RULES}
    for warning, cause in (
        ("update_too_large", "learning_rate_too_high"),
        ("sampler_mismatch", "sampler_mismatch"),
        ("ref_kl", "kl_runaway"),
        ("entropy", "entropy_collapse"),
        ("entropy", "entropy_explosion"),
        ("truncation", "truncation"),
        ("zero_variance", "no_signal"),
    ):
        assert advice_text(cause) in fixes[warning]
    assert advice_text("truncation").startswith("rollouts.max_new_tokens: higher (twice;")
