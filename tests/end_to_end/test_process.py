"""Policies learn from a process reward model that was trained here; from one that learnt from a coin they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end import process

pytestmark = pytest.mark.usefixtures("one_thread")
SEED = 0


@pytest.fixture(scope="module")
def start(root: Path) -> Path:
    return process.begin(root, SEED)


@pytest.fixture(scope="module")
def judge(root: Path, start: Path) -> Path:
    return process.judge(root, start, SEED)


@pytest.mark.parametrize(("row", "mark"), [("grpo_process", 0.7), ("ppo", 0.65)])
def test_the_true_reward_rises_on_held_out_prompts(root: Path, start: Path, judge: Path, row: str, mark: float) -> None:
    assert process.accuracy(judge) >= 0.95
    before = process.truth(root, start)
    after = process.truth(root, process.practised(root, row, start, judge, SEED))
    assert before["steps"] <= 0.5 and before["correct"] <= 0.05, before
    assert after["steps"] >= mark and after["correct"] >= before["correct"] + 0.15, (before, after)


def test_steps_that_a_coin_judged_teach_nothing(root: Path, start: Path) -> None:
    coin = process.judge(root, start, SEED, coin=True)
    assert process.accuracy(coin) <= 0.65
    before, after = (
        process.truth(root, each) for each in (start, process.practised(root, "grpo_process", start, coin, SEED))
    )
    assert after["steps"] <= before["steps"] + 0.05 and after["correct"] <= 0.05, (before, after)
