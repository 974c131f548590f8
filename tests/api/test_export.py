"""An exported folder is plain."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from ascent.api.export import export
from ascent.api.train import train_plan
from tests.setup.runs import tiny_plan


def test_an_exported_folder_loads_without_ascent(tmp_path: Path) -> None:
    train_plan(tiny_plan(run={"steps": 1}), tmp_path / "sft", say=lambda text: None)
    target = export(tmp_path / "sft", tmp_path / "plain")
    AutoModelForCausalLM.from_pretrained(target)
    assert not any("ascent" in path.read_text() for path in target.glob("*.json"))


def test_a_hub_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="someone/model is a hub name; export takes a run or a model folder"):
        export("someone/model", tmp_path / "plain")
