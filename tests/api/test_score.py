"""Scores come from a reward model only; process reward models are in tests/setup/test_reward_models.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascent.api.score import score
from ascent.api.train import train_plan
from tests.setup.runs import tiny_plan


def test_one_record_after_the_other(tmp_path: Path) -> None:
    train_plan(
        tiny_plan(algorithm="reward_model", run={"steps": 1}),
        tmp_path / "rm",
        say=lambda text: None,
    )
    said: list[str] = []
    lines = list(score(str(tmp_path / "rm"), "arithmetic@heldout:3", say=said.append))
    assert [line.record for line in lines] == [1, 2, 3]
    assert all(len(line.scores) == 2 for line in lines)
    assert said[0].startswith("scores are relative to ")


def test_a_policy_has_no_scores(tmp_path: Path) -> None:
    train_plan(tiny_plan(run={"steps": 1}), tmp_path / "sft", say=lambda text: None)
    with pytest.raises(ValueError, match="no scalar head"):
        list(score(str(tmp_path / "sft"), "arithmetic@heldout:2"))
