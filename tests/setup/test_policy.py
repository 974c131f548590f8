"""The models of a run: adapters, references, code of others, recomputation, each through a recipe."""

from __future__ import annotations

import json
import re
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ascent.api.check import check
from ascent.api.export import export
from ascent.api.train import assemble, resume_run, train_plan
from ascent.config.load import merge_configs
from ascent.config.validate import validate
from ascent.models.heads import StepFormat
from ascent.models.load import load
from ascent.models.lora import WithoutAdapter
from ascent.models.tiny import create
from ascent.plan import resolve
from ascent.runs.folder import read_run
from ascent.setup.policy import device, initial, load_policy, reference_of
from tests.end_to_end import rewarded
from tests.setup.runs import tiny_plan, weights_of

LORA = {"lora": 4, "lora_alpha": 8.0}
EVEN = f"{rewarded.__file__}:even"


def quiet(text: str) -> None: ...


@pytest.mark.parametrize(
    ("name", "quantize"),
    [("sft", None), ("reward_model", None), ("dpo", None), ("kto", None), ("sft", "nf4")],
)
def test_lora_trains_and_saves_the_adapter_alone_and_resumes_to_the_same_bits(
    name: str, quantize: str | None, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    if quantize is not None:
        pytest.importorskip("bitsandbytes")
    folder = tmp_path / "run"
    train_plan(tiny_plan(algorithm=name, model={**LORA, "quantize": quantize}), folder, say=quiet)
    final = weights_of(folder, 4)
    (base,) = (folder / "initial").rglob("model.safetensors")
    saved = {path.name: path.stat().st_size for path in (folder / "checkpoints/4/model").iterdir()}
    assert saved["adapter_model.safetensors"] < base.stat().st_size / 4
    assert not saved.keys() & {"model.safetensors", "config.json"}
    masters = load_file(folder / "checkpoints/4/optimizer.safetensors")
    assert all(".lora_" in key or "score" in key for key in masters if key.startswith("learners/"))
    shutil.rmtree(folder / "checkpoints" / "4")
    resume_run(folder, say=quiet)
    assert weights_of(folder, 4) == final
    assert [row["step"] for row in read_run(folder).metrics] == [1, 2, 3, 4]


def test_lora_is_exported_as_a_plain_model_and_its_scale_counts(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    for name, alpha in (("low", 1.0), ("high", 64.0)):
        train_plan(tiny_plan(model={"lora": 4, "lora_alpha": alpha}), tmp_path / name, say=quiet)
    (made,) = (tmp_path / "low/initial").rglob("model.safetensors")
    start = load_file(made)
    moved = {}
    for name in ("low", "high"):
        plain = export(str(tmp_path / name), tmp_path / f"{name}-plain")
        weights = AutoModelForCausalLM.from_pretrained(plain).state_dict()
        moved[name] = sum(
            float((weights[key] - start[key]).norm()) for key in start if key in weights
        )
        assert torch.equal(weights["model.embed_tokens.weight"], start["model.embed_tokens.weight"])
    assert moved["high"] > 4 * moved["low"] > 0


def test_the_reference_of_an_adapter_is_the_model_without_it(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    folder = tmp_path / "run"
    plan = tiny_plan(algorithm="dpo", model=LORA)
    train_plan(plan, folder, say=quiet)
    assert read_run(folder).metrics[0]["loss/total"] == pytest.approx(0.693147, abs=1e-6)
    assert read_run(folder).metrics[-1]["loss/total"] < 0.693
    policy = load_policy(plan, folder, folder / "checkpoints/4/model")
    reference = reference_of(plan, folder, policy)
    assert isinstance(reference.model, WithoutAdapter)
    batch = assemble(tiny_plan(algorithm="dpo"), tmp_path / "plain").source.next(1)[0]
    want = frozenset({"logprobs_T"})
    base_T = load(folder / "initial" / "llama").outputs(batch, want)["logprobs_T"]
    assert torch.equal(reference.model.outputs(batch, want)["logprobs_T"], base_T)
    assert not torch.equal(policy.outputs(batch, want)["logprobs_T"], base_T)


def test_an_adapter_of_another_rank_is_not_resumed(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    train_plan(tiny_plan(model=LORA, run={"steps": 1}), tmp_path / "run", say=quiet)
    saved = tmp_path / "run/checkpoints/1/model"
    with pytest.raises(
        ValueError, match=r"does not fit this adapter in .* use the rank and the model"
    ):
        load_policy(tiny_plan(model={"lora": 8}), tmp_path / "run", saved)
    train_plan(tiny_plan(run={"steps": 1}), tmp_path / "whole", say=quiet)
    with pytest.raises(ValueError, match="it was saved without LoRA"):
        load_policy(
            tiny_plan(model={"lora": 8}), tmp_path / "run", tmp_path / "whole/checkpoints/1/model"
        )


def test_an_adapter_is_not_put_on_a_model_that_has_changed(tmp_path: Path) -> None:
    """The recipe's policy may be a run that was trained further since."""
    pytest.importorskip("peft")
    base = create(tmp_path / "base", seed=0)
    plan = tiny_plan(model={"policy": str(base), **LORA}, run={"steps": 2, "save_every": 1})
    train_plan(plan, tmp_path / "run", say=quiet)
    shutil.rmtree(tmp_path / "run/checkpoints/2")
    shutil.rmtree(base)
    create(base, seed=1)
    with pytest.raises(
        ValueError, match=rf"model.policy {base} has another content \(model.safetensors "
    ):
        resume_run(tmp_path / "run", say=quiet)


def test_lora_and_recomputation_are_in_the_forecast() -> None:
    pytest.importorskip("peft")
    plain, adapted, again = (
        check(tiny_plan(model=model)).memory
        for model in ({}, LORA, {"gradient_checkpointing": True})
    )
    assert adapted.moments < plain.moments / 2
    assert again.activations < 0.6 * plain.activations
    assert again.weights == plain.weights


def test_recomputation_changes_no_bit(tmp_path: Path) -> None:
    for name, on in (("kept", False), ("again", True)):
        train_plan(
            tiny_plan(model={"gradient_checkpointing": on}, run={"steps": 2}),
            tmp_path / name,
            say=quiet,
        )
    assert weights_of(tmp_path / "kept", 2) == weights_of(tmp_path / "again", 2)


CODE = """
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel, LlamaPreTrainedModel


class TheirConfig(LlamaConfig):
    model_type = "theirs"


class TheirModel(LlamaForCausalLM):
    config_class = TheirConfig


class TheirScorer(LlamaPreTrainedModel):
    config_class = TheirConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = LlamaModel(config)
        self.score = nn.Linear(config.hidden_size, 1, bias=False)
        self.post_init()
"""


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds code of its own."""
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache")
    )
    folder = create(tmp_path / "theirs", hidden=16, heads=2, key_value_heads=1, layers=1)
    (folder / "theirs.py").write_text(CODE)
    path = folder / "config.json"
    kinds = {
        "Config": "Config",
        "ModelForCausalLM": "Model",
        "ModelForSequenceClassification": "Scorer",
    }
    classes = {f"Auto{kind}": f"theirs.Their{own}" for kind, own in kinds.items()}
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "model_type": "theirs", "auto_map": classes})
    )
    return folder


def test_code_that_comes_with_a_model_runs_only_where_the_recipe_says_so(
    tmp_path: Path, theirs: Path
) -> None:
    folder = theirs
    with pytest.raises(
        ValueError, match=r"set model\.trust_remote_code=true if you trust its code"
    ):
        train_plan(tiny_plan(model={"policy": str(folder)}), tmp_path / "refused", say=quiet)
    plan = tiny_plan(
        model={"policy": str(folder), "trust_remote_code": True}, run={"steps": 3, "save_every": 2}
    )
    train_plan(plan, tmp_path / "run", say=quiet)
    final = weights_of(tmp_path / "run", 3)
    shutil.rmtree(tmp_path / "run/checkpoints/3")
    resume_run(tmp_path / "run", say=quiet)
    assert weights_of(tmp_path / "run", 3) == final


def test_every_other_model_of_a_recipe_runs_its_code_too(tmp_path: Path, theirs: Path) -> None:
    """The reference of rollouts and who samples from it, the critic, the teacher, and both kinds of reward models."""
    model = load(theirs, head="scalar", trust_remote_code=True)
    model.save(tmp_path / "scores")
    model.step_format = StepFormat("\n")
    model.save(tmp_path / "steps")
    steps = {"use": "process_reward_model", "model": str(tmp_path / "steps")}
    runs: list[tuple[str, dict[str, Any]]] = [
        ("xpo", {"model": {"reference": str(theirs)}}),
        ("xpo", {"model": {"lora": 2}}),
        ("rlsd", {"model": {"teacher": str(theirs)}}),
        ("ppo", {"model": {"critic_from": str(theirs), "reward_model": str(tmp_path / "scores")}}),
        ("grpo_process", {"data": {"train": "running_sum:8"}, "rewards": [steps]}),
    ]
    for place, (algorithm, more) in enumerate(runs):
        settings = {
            "algorithm": algorithm,
            "model": {"policy": str(theirs), "trust_remote_code": True},
            "data": {"train": "sort_digits:8"},
            "rollouts": {"prompts_per_step": 2, "max_new_tokens": 4},
            "run": {"steps": 1, "save_every": 1},
            "rewards": [{"use": "reward_model" if algorithm == "ppo" else EVEN}],
        }
        plan = resolve(validate(merge_configs(settings, more)))
        train_plan(plan, tmp_path / str(place), say=quiet)
        assert (tmp_path / str(place) / "checkpoints/1").exists(), algorithm


@contextmanager
def little_room() -> Iterator[None]:
    """No file can be larger than 100 kB: the system refuses to write more, as it does where a disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_room_for_a_model_at_the_start_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    plan, folder = tiny_plan(run={"steps": 1}), tmp_path / "run"
    with (
        little_room(),
        pytest.raises(ValueError, match=r"^model tiny:llama could not be .*; free some space$"),
    ):
        train_plan(plan, folder, say=quiet)
    assert not folder.exists()
    said: list[str] = []
    assert train_plan(plan, folder, say=said.append) == 1
    assert not any("killed before" in line for line in said)


def test_a_model_that_is_made_again_is_whole_or_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train_plan(tiny_plan(algorithm="dpo", run={"steps": 2, "save_every": 1}), folder, say=quiet)
    final = weights_of(folder, 2)
    shutil.rmtree(folder / "checkpoints/2")
    shutil.rmtree(folder / "initial")
    with little_room(), pytest.raises(ValueError, match="free some space"):
        resume_run(folder, say=quiet)
    assert list((folder / "initial").iterdir()) == []
    (folder / "initial/.llama.writing").mkdir()  # as a kill leaves it
    resume_run(folder, say=quiet)
    assert weights_of(folder, 2) == final
    assert [each.name for each in (folder / "initial").iterdir()] == ["llama"]


def test_tiny_models_of_other_names_are_other_models(tmp_path: Path) -> None:
    small, digits = (initial(f"tiny:{name}", tmp_path, seed=0) for name in ("llama", "digits"))
    assert len(load(small).tokenizer) == 258 and len(load(digits).tokenizer) == 275
    with pytest.raises(ValueError, match="no tiny model named 'lama'; there are llama"):
        initial("tiny:lama", tmp_path, seed=0)


def mac(monkeypatch: pytest.MonkeyPatch, wanted: str | None) -> None:
    """A Mac with a GPU, as far as the choice of the device sees one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.delenv("ASCENT_MPS", raising=False)
    if wanted is not None:
        monkeypatch.setenv("ASCENT_MPS", wanted)


def test_the_gpu_of_a_mac_is_used_on_request_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert device() == ("cuda" if torch.cuda.is_available() else "cpu")
    mac(monkeypatch, None)
    assert device() == "cpu"
    notes = load_policy(tiny_plan(), tmp_path).notes
    assert (
        "the GPU of this Mac (mps) is not used, because training on it is untested; ASCENT_MPS=1 tries it"
        in notes
    )
    mac(monkeypatch, "1")
    assert device() == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device() == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match="ASCENT_MPS=1, but torch finds no GPU of a Mac"):
        device()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (None, "grpo samples"),
        ({"algorithm": "gkd"}, "gkd samples"),
        ({"algorithm": "reward_model"}, "reward_model trains a model that scores"),
        ({"model": {"dtype": "bfloat16"}}, "model.dtype=bfloat16"),
        ({"model": {"lora": 2, "quantize": "nf4"}}, "model.quantize=nf4"),
    ],
)
def test_what_cannot_run_on_the_gpu_of_a_mac_is_refused_first(
    changes: dict[str, Any] | None, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sampling = {
        "model": {"policy": "tiny:llama"},
        "data": {"train": "sort_digits:8"},
        "rewards": [{"use": "verifier"}],
    }
    plan = (
        resolve(validate({"algorithm": "grpo", **sampling}))
        if changes is None
        else tiny_plan(**changes)
    )
    mac(monkeypatch, "1")
    with pytest.raises(
        ValueError, match=f"train on files in float32, but {re.escape(reason)}; unset ASCENT_MPS"
    ):
        load_policy(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()
