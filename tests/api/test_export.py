"""An exported folder is plain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from ascent.api.export import export
from ascent.api.train import train_plan
from ascent.checkpoints.manifest import CheckpointError
from ascent.config.load import merge_configs
from ascent.config.validate import validate
from ascent.models.heads import score_layer
from ascent.models.load import load
from ascent.models.tiny import create
from ascent.plan import resolve
from ascent.setup.policy import load_policy
from tests.data import chat
from tests.models.packing import batch_of, one_by_one
from tests.setup.runs import TINY, tiny_plan

CONFIG = "generation_config.json"


def test_an_exported_folder_loads_without_ascent(tmp_path: Path) -> None:
    train_plan(tiny_plan(run={"steps": 1}), tmp_path / "sft", say=lambda text: None)
    target = export(tmp_path / "sft", tmp_path / "plain")
    AutoModelForCausalLM.from_pretrained(target)
    assert not any("ascent" in path.read_text() for path in target.glob("*.json"))


def test_a_hub_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="someone/model is a hub name; export takes a run or a model folder"
    ):
        export("someone/model", tmp_path / "plain")


GRPO: dict[str, Any] = {
    "algorithm": "grpo",
    "model": {"policy": "base"},
    "data": {"train": "arithmetic:8"},
    "rewards": [{"use": "exact"}],
    "rollouts": {"prompts_per_step": 2, "group_size": 2, "max_new_tokens": 4},
    "run": {"steps": 1},
}


@pytest.mark.parametrize("lora", [None, 4])
@pytest.mark.parametrize("recipe", [{**TINY, "run": {"steps": 1}}, GRPO], ids=["sft", "grpo"])
def test_an_exported_model_stops_where_answers_end(
    recipe: dict[str, Any], lora: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The template ends answers with another token than the tokenizer's EOS, as those of many base models do."""
    if lora is not None:
        pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    base = create("base", layers=1, special=("<|start|>", "<|end|>"), chat_template=chat.CHATML)
    eos, end = load(base).tokenizer.convert_tokens_to_ids(["<eos>", "<|end|>"])
    (base / CONFIG).write_text(json.dumps({"eos_token_id": eos, "top_p": 0.9}))
    plan = resolve(validate(merge_configs(recipe, {"model": {"policy": "base", "lora": lora}})))
    train_plan(plan, Path("run"), progress=False, say=lambda text: None)
    found = json.loads((export("run", "plain") / CONFIG).read_text())
    assert (found["eos_token_id"], found["top_p"]) == (sorted([eos, end]), 0.9)


@pytest.mark.parametrize("quantize", [None, "nf4"])
def test_an_adapter_is_merged(quantize: str | None, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    if quantize is not None:
        pytest.importorskip("bitsandbytes")
    plan = tiny_plan(model={"lora": 4, "quantize": quantize}, run={"steps": 1, "save_every": 1})
    train_plan(plan, tmp_path / "run", say=lambda text: None)
    target = export(tmp_path / "run", tmp_path / "plain")
    names = {path.name for path in target.iterdir()}
    assert "model.safetensors" in names and not any(name.startswith("adapter") for name in names)
    assert "quantization_config" not in json.loads((target / "config.json").read_text())
    trained = load_policy(plan, tmp_path / "run", tmp_path / "run/checkpoints/1/model")
    stock = AutoModelForCausalLM.from_pretrained(target, attn_implementation="eager").eval()
    theirs_T, _ = one_by_one(stock, batch_of())
    ours_T = trained.outputs(batch_of(), frozenset({"logprobs_T"}))["logprobs_T"]
    torch.testing.assert_close(theirs_T.detach(), ours_T.detach(), rtol=0, atol=1e-5)
    with pytest.raises(CheckpointError, match="exists and is not an empty folder"):
        export(tmp_path / "run", tmp_path / "plain")


def test_a_merged_reward_model_keeps_its_head(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    plan = tiny_plan(algorithm="reward_model", model={"lora": 4}, run={"steps": 1, "save_every": 1})
    train_plan(plan, tmp_path / "run", say=lambda text: None)
    target = export(tmp_path / "run", tmp_path / "plain")
    trained = load_policy(plan, tmp_path / "run", tmp_path / "run/checkpoints/1/model")
    stock = AutoModelForSequenceClassification.from_pretrained(target)
    assert torch.equal(stock.score.weight, score_layer(trained.module).weight)
    assert (
        load(target, head="scalar").normalization
        == load(tmp_path / "run", head="scalar").normalization
    )
