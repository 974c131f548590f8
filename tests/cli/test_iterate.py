"""`ascent rounds`: its errors; whole runs are in tests/end_to_end/test_rounds.py."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from ascent.cli.main import app


def call(*words: str):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="rounds needs a folder; add --run DIR"):
        call("rounds", "rlhf_iterated")
    with pytest.raises(ValueError, match="sft is no recipe of rounds"):
        call("rounds", "sft", "--run", str(tmp_path / "r"))
    with pytest.raises(ValueError, match=r"collect\.samples"):
        call("rounds", "rlhf_iterated", "collect.samples=1", "--run", str(tmp_path / "r"))
    assert not (tmp_path / "r").exists()
