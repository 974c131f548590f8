"""`ascent compare` for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ascent.cli.main import app
from ascent.models.tiny import create


def call(*words: str):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_a_table_and_json(tmp_path: Path) -> None:
    models = [str(create(tmp_path / str(seed), seed=seed)) for seed in (0, 1)]
    file = tmp_path / "mine.py"
    file.write_text("def brief(rollout):\n    return -float(len(rollout.text))\n")
    words = [
        "compare",
        *models,
        "style",
        "--limit",
        "4",
        "--max-new-tokens",
        "5",
        "--judge",
        f"{file}:brief",
    ]
    shown = call(*words).stdout
    assert (
        "win rate, lengths matched" in shown and "no winner: the interval holds one half" in shown
    )
    found = json.loads(call(*words, "--samples", "2", "--json").stdout)
    assert found["prompts"] == 4 and found["samples"] == 2 and found["winner"] in ("a", "b", None)
    assert (
        0
        <= found["win_rate"]["low"]
        <= found["win_rate"]["value"]
        <= found["win_rate"]["high"]
        <= 1
    )


def test_a_judge_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="no reward named"):
        call("compare", "a", "b", "style", "--judge", "nobody")
