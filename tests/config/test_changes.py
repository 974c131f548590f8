"""Which keys may change on resume: every key is classified, and each reason is given where it holds."""

from __future__ import annotations

from typing import Any

import pytest

from ascent.config.changes import (
    DATA,
    MODELS,
    NOT_SET,
    ON_RESUME,
    Change,
    check_changes,
    evaluated_since,
    find_changes,
    flatten,
    refusal_reason,
)
from ascent.config.schema import leaves
from ascent.config.validate import validate
from ascent.plan.resolve import resolve
from tests.recipes import least


def recipe(algorithm: str, **more: Any) -> dict[str, Any]:
    tree = least(algorithm)
    for key, value in more.items():
        section, _, name = key.partition("__")
        if name:
            tree.setdefault(section, {})[name] = value
        else:
            tree[section] = value
    return flatten(resolve(validate(tree)).config)


def test_every_key_of_the_schema_is_classified_and_no_other() -> None:
    assert set(ON_RESUME) == set(leaves())
    assert set(MODELS + DATA) <= set(ON_RESUME)


@pytest.mark.parametrize("algorithm", ["sft", "dpo", "grpo", "ppo"])
def test_a_recipe_that_did_not_change_has_no_changes(algorithm: str) -> None:
    assert find_changes(recipe(algorithm), recipe(algorithm)) == []


def test_values_have_dotted_keys_also_in_lists_and_cells() -> None:
    found = recipe(
        "grpo", rewards=[{"use": "exact"}, {"use": "length", "target": 8, "weight": 0.5}]
    )
    assert (found["rewards[1].target"], found["rewards[1].weight"]) == (8, 0.5)
    assert found["cells.policy_loss.high"] == 0.2 and found["model.policy"] == "p"
    assert found["run.trackers"] == []


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        ({}, {"update__learning_rate": 1e-5}, {"update.learning_rate": ""}),
        ({}, {"rewards": [{"use": "exact", "weight": 2.0}]}, {"rewards[0].weight": ""}),
        ({}, {"cells": {"policy_loss": {"high": 0.3}}}, {"cells.policy_loss.high": ""}),
        ({}, {"cells": {"kl": {"weight": 0.1}}}, {"cells.kl.weight": ""}),
        (
            {},
            {"cells": {"filter": {"not_truncated": {}}}},
            {"cells.filter.not_truncated": "another function makes"},
        ),
        (
            {},
            {"cells": {"policy_loss": {"use": "cispo"}}},
            {"cells.policy_loss.use": "another function makes"},
        ),
        ({}, {"model__arithmetic": "exact"}, {"model.arithmetic": ""}),
        (
            {"rollouts__max_staleness": 1},
            {"rollouts__max_staleness": 1, "model__arithmetic": "exact"},
            {"model.arithmetic": "the checkpoint holds rollouts"},
        ),
        ({}, {"rollouts__temperature": 0.9}, {"rollouts.temperature": ""}),
        (
            {},
            {"rollouts__max_staleness": 1},
            {"rollouts.max_staleness": "the checkpoint holds a rollout buffer"},
        ),
        (
            {"rollouts__max_staleness": 1},
            {"rollouts__max_staleness": 1, "rollouts__temperature": 0.9},
            {"rollouts.temperature": "the checkpoint holds rollouts"},
        ),
        (
            {"rollouts__max_staleness": 1},
            {"rollouts__max_staleness": 1, "rollouts__max_new_tokens": 9},
            {"rollouts.max_new_tokens": ""},
        ),
        (
            {"rollouts__max_staleness": 1, "rollouts__partial_rollouts": True},
            {
                "rollouts__max_staleness": 1,
                "rollouts__partial_rollouts": True,
                "rollouts__max_new_tokens": 9,
            },
            {"rollouts.max_new_tokens": "the checkpoint holds unfinished rollouts"},
        ),
        (
            {"cells": {"kl_controller": {"use": "ziegler_sequence"}}},
            {"cells": {"kl_controller": {"use": "ziegler_sequence"}, "kl": {"weight": 0.1}}},
            {"cells.kl.weight": "the KL controller has changed"},
        ),
    ],
)
def test_reasons(was: dict[str, Any], now: dict[str, Any], expected: dict[str, str]) -> None:
    before, after = recipe("grpo", **was), recipe("grpo", **now)
    found = {each.key: refusal_reason(each, before) for each in find_changes(before, after)}
    for key, words in expected.items():
        assert found[key].startswith(words) and bool(found[key]) == bool(words), found
    refused = [key for key, why in found.items() if why]
    if refused:
        with pytest.raises(
            ValueError,
            match=r"cannot be changed on resume: .*\nrestore it in config.yaml, or start",
        ):
            check_changes(find_changes(before, after), before, "config.yaml")
    else:
        check_changes(find_changes(before, after), before, "config.yaml")


def test_shares_of_data_cannot_change_but_data_that_moved_can() -> None:
    before = recipe("sft", data__mix=[{"use": "more.jsonl", "share": 0.25}])
    moved = recipe("sft", data__mix=[{"use": "data/more.jsonl", "share": 0.25}])
    shared = recipe("sft", data__mix=[{"use": "more.jsonl", "share": 0.5}])
    longer = recipe(
        "sft", data__mix=[{"use": each, "share": 0.25} for each in ("more.jsonl", "most.jsonl")]
    )
    assert [refusal_reason(each, before) for each in find_changes(before, moved)] == [""]
    assert [bool(refusal_reason(each, before)) for each in find_changes(before, shared)] == [True]
    assert all(refusal_reason(each, before) for each in find_changes(before, longer))


def test_a_row_of_ones_own_may_move_but_not_become_another() -> None:
    assert refusal_reason(Change("algorithm", "a/rows.py:MINE", "b/rows.py:MINE"), {}) == ""
    assert refusal_reason(Change("algorithm", "a/rows.py:MINE", "a/rows.py:OTHER"), {})
    assert refusal_reason(Change("algorithm", "a/rows.py:MINE", "sft"), {})


def test_the_best_by_another_number_cannot_be_compared_with_those_kept() -> None:
    assert refusal_reason(Change("run.best_metric", "correct", "reward"), {})
    assert refusal_reason(Change("run.best_metric", NOT_SET, "reward"), {}) == ""


INPUT = {"input": True, "now": {"content": {}}}


@pytest.mark.parametrize(
    ("line", "sampled", "of_records"),
    [
        ({"key": "data.evaluate", **INPUT}, True, True),
        ({"key": "data.evaluate", "was": "a.jsonl", "now": "b.jsonl"}, False, False),  # moved
        ({"key": "data.train", **INPUT}, False, False),
        ({"key": "rewards[0].weight", "was": 1, "now": 2}, True, False),
        ({"key": "rewards[0].use", **INPUT}, True, False),
        ({"key": "env.max_turns", "was": 1, "now": 2}, True, False),
        ({"key": "model.reward_model", **INPUT}, True, False),
        ({"key": "cells.kl.weight", "was": 1, "now": 2}, False, True),
        ({"key": "model.reference", **INPUT}, False, True),
        ({"key": "update.learning_rate", "was": 1, "now": 2}, False, False),
        ({"key": "run.evaluate_every", "was": 1, "now": 2}, False, False),
    ],
)
def test_which_evaluations_can_be_compared(
    line: dict[str, Any], sampled: bool, of_records: bool
) -> None:
    lines = [{"step": 3, "key": "data.evaluate", **INPUT}, {"step": 7, **line}]
    recipe = {"data.evaluate": "a.jsonl"}
    assert evaluated_since(lines, recipe, samples=True) == (7 if sampled else 3)
    assert evaluated_since(lines, recipe, samples=False) == (7 if of_records else 3)
    assert evaluated_since([], recipe, samples=True) == 0


def test_a_share_of_other_training_data_is_another_evaluation() -> None:
    lines = [{"step": 7, "key": "data.train", **INPUT}]
    assert evaluated_since(lines, {"data.evaluate": "5%"}, samples=False) == 7


def test_words_and_records() -> None:
    change = Change("run.best_metric", NOT_SET, "reward")
    assert change.describe(41) == "run.best_metric (not set) -> 'reward', from step 41 on"
    assert change.record() == {"key": "run.best_metric", "now": "reward"}
    assert Change("env", None, NOT_SET).record() == {"key": "env", "was": None}
