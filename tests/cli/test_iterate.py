"""`ascent iterate`: its errors; whole runs are in tests/end_to_end/test_rounds.py."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from ascent.cli.main import app


def call(*words: str):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="iterate needs a folder; add --run DIR"):
        call("iterate", "rlhf_iterated")
    with pytest.raises(ValueError, match="sft is not a recipe of ascent iterate"):
        call("iterate", "sft", "--run", str(tmp_path / "r"))
    with pytest.raises(ValueError, match=r"collect\.samples"):
        call("iterate", "rlhf_iterated", "collect.samples=1", "--run", str(tmp_path / "r"))
    assert not (tmp_path / "r").exists()


def test_its_old_name_names_the_new_one():
    with pytest.raises(ValueError, match=r"^rounds is now called iterate$"):
        call("rounds", "rlhf_iterated", "--run", "runs/r")
    assert "rounds" not in call("--help").stdout.replace("Repeat rounds", "")
