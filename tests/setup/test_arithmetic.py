"""`model.arithmetic: auto`: exact where it is proven, and the run folder says which it was."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoConfig

import ascent
from ascent.api.train import plan_of
from ascent.models.exact import PROVEN, is_proven
from ascent.models.load import load
from ascent.models.lora import attach
from ascent.models.tiny import create
from ascent.parallel.ranks import SINGLE
from ascent.setup import arithmetic
from ascent.setup.arithmetic import with_arithmetic

RECIPE = {
    "algorithm": "grpo",
    "model.policy": "tiny:qwen2",
    "model.dtype": "bfloat16",
    "data.train": "arithmetic:8",
}
REWARDS = {"rewards": ["exact"]}


def decided(changes: dict[str, Any], folder: Path, ranks: Any = SINGLE) -> str:
    plan = plan_of(RECIPE | ({} if "algorithm" in changes else REWARDS) | changes)
    return with_arithmetic(plan, folder, ranks).config.model.arithmetic


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "device_problem", lambda device: "")


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "exact"),
        ({"model.lora": 4}, "exact"),
        ({"model.policy": "tiny:llama"}, "exact"),
        ({"model.policy": "tiny:mistral"}, "exact"),
        ({"model.policy": "tiny:qwen3"}, "exact"),
        ({"model.policy": "tiny:gemma3"}, "fast"),
        ({"model.policy": "tiny:qwen3_moe"}, "fast"),
        ({"model.policy": "tiny:phi3"}, "fast"),
        ({"model.dtype": "float32"}, "fast"),
        ({"model.reference": "tiny:gemma3"}, "fast"),
        ({"algorithm": "ppo", **REWARDS}, "exact"),
        ({"algorithm": "ppo", "model.critic_from": "tiny:gemma3", **REWARDS}, "fast"),
        ({"model.lora": 4, "model.quantize": "nf4"}, "fast"),
        ({"rollouts.engine": "hf"}, "fast"),
        ({"algorithm": "sft"}, "fast"),
        ({"model.arithmetic": "fast"}, "fast"),
        (
            {"model.arithmetic": "exact", "model.policy": "tiny:gemma3"},
            "exact",
        ),  # refused when it is loaded
    ],
    ids=str,
)
def test_auto_is_exact_where_it_is_proven(
    changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    assert decided(changes, tmp_path) == expected


@pytest.mark.usefixtures("hopper")
def test_several_ranks_are_fast(tmp_path: Path) -> None:
    assert decided({}, tmp_path, SimpleNamespace(count=2)) == "fast"


@pytest.mark.usefixtures("hopper")
def test_the_base_of_an_adapter_decides(tmp_path: Path) -> None:
    for family, expected in (("llama", "exact"), ("gemma3", "fast")):
        model = attach(load(create(tmp_path / family, family=family)), rank=2, alpha=4.0, seed=0)
        model.save(tmp_path / f"{family}-adapter")
        assert decided({"model.policy": str(tmp_path / f"{family}-adapter")}, tmp_path) == expected


def test_without_a_gpu_it_is_fast_and_recorded_as_such(tmp_path: Path) -> None:
    said: list[str] = []
    run = ascent.train(
        RECIPE | {"model.arithmetic": "auto", "model.dtype": "float32", "run.steps": 1, **REWARDS},
        {"rollouts.max_new_tokens": 2, "rollouts.prompts_per_step": 2, "rollouts.group_size": 2},
        run=tmp_path / "run",
        progress=False,
        say=lambda text: None,
    )
    assert "arithmetic: fast" in run.config
    config = tmp_path / "run" / "config.yaml"
    config.write_text(
        run.config.replace("arithmetic: fast", "arithmetic: auto").replace("steps: 1", "steps: 2")
    )
    ascent.resume(tmp_path / "run", progress=False, say=said.append)
    assert any("run.steps 1 -> 2" in line for line in said) and not any(
        "model.arithmetic" in line for line in said
    )
    assert (
        ascent.Policy("tiny:llama", overrides=["model.arithmetic=auto"]).config.model.arithmetic
        == "fast"
    )


@pytest.mark.parametrize("family", PROVEN)
def test_what_is_proven_of_a_family(family: str) -> None:
    config = AutoConfig.for_model(
        family, hidden_size=64, num_attention_heads=4, head_dim=16, sliding_window=None
    )
    assert is_proven(config)
    config.head_dim = 256
    assert not is_proven(config)
    config.head_dim, config.layer_types = 16, ["full_attention", "sliding_attention"]
    assert not is_proven(config)
    config.layer_types, config.hidden_size = None, 36
    assert not is_proven(config)
