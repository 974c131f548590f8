"""Tasks by the names that recipes use."""

from __future__ import annotations

import pytest

from ascent.tasks import TASKS
from ascent.tasks.named import TaskName, describe_missing, from_name, is_task, read_name

TASK = TASKS["sort_digits"]


def test_names_lead_to_records() -> None:
    assert from_name("sort_digits", "prompts", count=3) == TASK.prompts("train", 3)
    assert from_name("sort_digits@heldout:4", "examples", seed=2) == TASK.demonstrations(
        "heldout", 4, 2
    )
    assert from_name("sort_digits:4", "pairs") == TASK.pairs("train", 4)
    assert from_name("sort_digits:4", "rankings") == TASK.rankings("train", 4)
    assert from_name("sort_digits:4", "unpaired") == TASK.unpaired("train", 4)
    assert from_name("running_sum:4", "steps") == TASKS["running_sum"].stepwise("train", 4)
    assert from_name("sort_digits:4", "prompts", split="heldout") == TASK.prompts("heldout", 4)
    assert from_name("sort_digits@train", "prompts", count=4, split="heldout") == TASK.prompts(
        "train", 4
    )


def test_a_name_says_what_it_says_and_no_more() -> None:
    assert read_name("style") == TaskName(TASKS["style"], None, None)
    assert read_name("style@heldout:5") == TaskName(TASKS["style"], "heldout", 5)


@pytest.mark.parametrize(
    "name", ["style", "style@heldout", "style@heldout:5", "style:5", "style@odd"]
)
def test_task_names(name: str) -> None:
    assert is_task(name)


@pytest.mark.parametrize("name", ["styles", "data/style", "style.jsonl", "style@heldout:many", ""])
def test_other_names(name: str) -> None:
    assert not is_task(name)


def test_a_task_may_have_digits_in_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "sort_2_lists", TASK)
    assert is_task("sort_2_lists@heldout:5") and read_name("sort_2_lists:5") == TaskName(
        TASK, None, 5
    )
    assert not is_task("2_lists")


def test_a_name_that_is_no_task_leads_to_the_nearest() -> None:
    assert (
        describe_missing("sort_digits2@heldout:4")
        == "no task named 'sort_digits2'; did you mean sort_digits?"
    )
    assert describe_missing("Style:5") == "no task named 'Style'; did you mean style?"
    assert (
        describe_missing("owner/name:config")
        == f"no task named 'owner/name'; there are {', '.join(TASKS)}"
    )
    assert (
        describe_missing("style:many")
        == "the task style is written style, style@SPLIT, style:COUNT or style@SPLIT:COUNT"
    )


def test_errors() -> None:
    with pytest.raises(
        ValueError, match="style has no steps: its verifier scores no steps; it has prompts"
    ):
        from_name("style", "steps")
    with pytest.raises(ValueError, match="splits train and heldout, not 'odd'"):
        from_name("style@odd", "pairs")
    with pytest.raises(ValueError, match="as 'pears', but it must be one of prompts"):
        from_name("style", "pears")
    with pytest.raises(ValueError, match=r"style:9+: a count must be less than 100000000"):
        from_name("style:" + "9" * 5000, "pairs")
    with pytest.raises(
        ValueError,
        match=r"'styles' names no built-in task: no task named 'styles'; did you mean style\?",
    ):
        from_name("styles", "pairs")
