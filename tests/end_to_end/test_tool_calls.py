"""Runs on data with tools: the template's tokens reach the loss, and a model without such a template is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ascent
from ascent.models.tiny import create
from tests.data import chat
from tests.data.test_tools import ASK, CALLING, DONE, REPLY, TOOL

SPECIAL = ("<|start|>", "<|end|>", "<|eos|>")
ROWS = {
    "sft": {"messages": [ASK, CALLING, REPLY, DONE], "tools": [TOOL]},
    "dpo": {"prompt": [ASK], "chosen": [CALLING], "rejected": [DONE], "tools": [TOOL]},
}


@pytest.mark.parametrize("algorithm", list(ROWS))
def test_a_run(algorithm: str, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text((json.dumps(ROWS[algorithm]) + "\n") * 4)
    recipe = {
        "algorithm": algorithm,
        "data.train": str(data),
        "data.batch_size": 2,
        "run.steps": 6,
        "run.save_every": 6,
        "update.learning_rate": 1e-2,
    }
    able = create(tmp_path / "able", special=SPECIAL, chat_template=chat.TOOLS)
    run = ascent.train(
        {**recipe, "model.policy": str(able)}, run=tmp_path / "run", say=lambda text: None
    )
    losses = [step["loss/total"] for step in run.metrics]
    assert losses[-1] < losses[0]
    unable = create(tmp_path / "unable", special=SPECIAL, chat_template=chat.CHATML)
    with pytest.raises(
        ValueError, match=r"does not write the tools on offer.*; use a model whose chat"
    ):
        ascent.train(
            {**recipe, "model.policy": str(unable)}, run=tmp_path / "refused", say=lambda text: None
        )
    assert not (tmp_path / "refused" / "checkpoints").exists()
