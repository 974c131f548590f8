"""The models of a run: adapters, references, code of others, recomputation, each through a recipe."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ascent.build import use
from ascent.build.check import check
from ascent.build.policy import initial, load_policy, reference_of
from ascent.build.training import assemble, resume, train
from ascent.models.load import load
from ascent.models.lora import WithoutAdapter
from ascent.models.tiny import create
from ascent.runs.folder import read_run
from tests.build.runs import tiny_plan, weights_of

LORA = {"lora": 4, "lora_alpha": 8.0}


def quiet(text: str) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sft", "reward_model", "dpo", "kto"])
def test_lora_trains_the_adapter_alone_and_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    folder = tmp_path / "run"
    train(tiny_plan(algorithm=name, model=LORA), folder, say=quiet)
    adapter = "checkpoints/4/model/adapter/adapter_model.safetensors"
    final, tuned = weights_of(folder, 4), (folder / adapter).read_bytes()
    masters = load_file(folder / "checkpoints/4/optimizer.safetensors")
    assert all(".lora_" in key or "score" in key for key in masters if key.startswith("learners/"))
    shutil.rmtree(folder / "checkpoints" / "4")
    resume(folder, say=quiet)
    assert weights_of(folder, 4) == final
    assert (folder / adapter).read_bytes() == tuned
    assert [row["step"] for row in read_run(folder).metrics] == [1, 2, 3, 4]


@pytest.mark.slow
def test_lora_saves_a_plain_model_and_its_scale_counts(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    for name, alpha in (("low", 1.0), ("high", 64.0)):
        train(tiny_plan(model={"lora": 4, "lora_alpha": alpha}), tmp_path / name, say=quiet)
    (made,) = (tmp_path / "low/initial").rglob("model.safetensors")
    start = load_file(made)
    moved = {}
    for name in ("low", "high"):
        plain = use.export(str(tmp_path / name), tmp_path / f"{name}-plain")
        weights = AutoModelForCausalLM.from_pretrained(plain).state_dict()
        moved[name] = sum(float((weights[key] - start[key]).norm()) for key in start if key in weights)
        assert torch.equal(weights["model.embed_tokens.weight"], start["model.embed_tokens.weight"])
    assert moved["high"] > 4 * moved["low"] > 0


@pytest.mark.slow
def test_the_reference_of_an_adapter_is_the_model_without_it(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    folder = tmp_path / "run"
    plan = tiny_plan(algorithm="dpo", model=LORA)
    train(plan, folder, say=quiet)
    assert read_run(folder).metrics[0]["loss"] == pytest.approx(0.693147, abs=1e-6)
    assert read_run(folder).metrics[-1]["loss"] < 0.693
    policy = load_policy(plan, folder, folder / "checkpoints/4/model")
    reference = reference_of(plan, folder, policy)
    assert isinstance(reference.model, WithoutAdapter)
    batch = assemble(tiny_plan(algorithm="dpo"), tmp_path / "plain").source.next(1)[0]
    want = frozenset({"logprobs_T"})
    base_T = load(folder / "initial" / "llama").outputs(batch, want)["logprobs_T"]
    assert torch.equal(reference.model.outputs(batch, want)["logprobs_T"], base_T)
    assert not torch.equal(policy.outputs(batch, want)["logprobs_T"], base_T)


@pytest.mark.slow
def test_an_adapter_of_another_rank_is_not_resumed(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    train(tiny_plan(model=LORA, run={"steps": 1}), tmp_path / "run", say=quiet)
    saved = tmp_path / "run/checkpoints/1/model"
    with pytest.raises(ValueError, match=r"does not fit this adapter in .* use the rank and the model"):
        load_policy(tiny_plan(model={"lora": 8}), tmp_path / "run", saved)
    train(tiny_plan(run={"steps": 1}), tmp_path / "whole", say=quiet)
    with pytest.raises(ValueError, match="it was saved without LoRA"):
        load_policy(tiny_plan(model={"lora": 8}), tmp_path / "run", tmp_path / "whole/checkpoints/1/model")


@pytest.mark.slow
def test_an_adapter_is_not_put_on_a_model_that_has_changed(tmp_path: Path) -> None:
    """The recipe's policy may be a run that was trained further since."""
    pytest.importorskip("peft")
    base = create(tmp_path / "base", seed=0)
    plan = tiny_plan(model={"policy": str(base), **LORA}, run={"steps": 2, "save_every": 1})
    train(plan, tmp_path / "run", say=quiet)
    shutil.rmtree(tmp_path / "run/checkpoints/2")
    shutil.rmtree(base)
    create(base, seed=1)
    with pytest.raises(ValueError, match="the model it was trained on has changed since"):
        resume(tmp_path / "run", say=quiet)


def test_lora_and_recomputation_are_in_the_forecast() -> None:
    pytest.importorskip("peft")
    plain, adapted, again = (check(tiny_plan(model=model)).memory for model in ({}, LORA, {"recompute": True}))
    assert adapted.moments < plain.moments / 2
    assert again.activations < 0.6 * plain.activations
    assert again.weights == plain.weights


@pytest.mark.slow
def test_recomputation_changes_no_bit(tmp_path: Path) -> None:
    for name, on in (("kept", False), ("again", True)):
        train(tiny_plan(model={"recompute": on}, run={"steps": 2}), tmp_path / name, say=quiet)
    assert weights_of(tmp_path / "kept", 2) == weights_of(tmp_path / "again", 2)


CODE = """
from transformers import LlamaConfig, LlamaForCausalLM


class TheirConfig(LlamaConfig):
    model_type = "theirs"


class TheirModel(LlamaForCausalLM):
    config_class = TheirConfig
"""


@pytest.mark.slow
def test_code_that_comes_with_a_model_runs_only_where_the_recipe_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))
    folder = create(tmp_path / "theirs", hidden=16, heads=2, key_value_heads=1, layers=1)
    (folder / "theirs.py").write_text(CODE)
    path = folder / "config.json"
    classes = {"AutoConfig": "theirs.TheirConfig", "AutoModelForCausalLM": "theirs.TheirModel"}
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "theirs", "auto_map": classes}))
    with pytest.raises(ValueError, match=r"set model\.trust_remote_code=true if you trust its code"):
        train(tiny_plan(model={"policy": str(folder)}), tmp_path / "refused", say=quiet)
    plan = tiny_plan(model={"policy": str(folder), "trust_remote_code": True}, run={"steps": 3, "save_every": 2})
    train(plan, tmp_path / "run", say=quiet)
    final = weights_of(tmp_path / "run", 3)
    shutil.rmtree(tmp_path / "run/checkpoints/3")
    resume(tmp_path / "run", say=quiet)
    assert weights_of(tmp_path / "run", 3) == final


def test_tiny_models_of_other_names_are_other_models(tmp_path: Path) -> None:
    small, digits = (initial(f"tiny:{name}", tmp_path, seed=0) for name in ("llama", "digits"))
    assert len(load(small).tokenizer) == 258 and len(load(digits).tokenizer) == 275
    with pytest.raises(ValueError, match="no tiny model named 'lama'; there are llama"):
        initial("tiny:lama", tmp_path, seed=0)
