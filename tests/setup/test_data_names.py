"""A name that is neither a task nor a dataset: every command says both readings and the nearest task."""

from __future__ import annotations

from collections.abc import Callable

import datasets
import pytest

from ascent.api.evaluate import load_prompts
from ascent.cli.inspect import _load
from ascent.setup.data import load_records

NAME = "sort_digits2:64"
BOTH = (
    r"'sort_digits2' is no file, no folder and no built-in task here, and as a hub dataset it cannot be read: .*\. "
    r"As a task: no task named 'sort_digits2'; did you mean sort_digits\?"
)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize(
    "read",
    [
        lambda: load_records(NAME, "examples", seed=0),  # of a recipe
        lambda: load_prompts(NAME, None),  # ascent evaluate, sample and compare
        lambda: _load(NAME, None),  # ascent inspect
    ],
)
def test_both_readings_and_the_nearest_task_are_said(read: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=BOTH):
        read()
