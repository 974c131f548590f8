"""What exact arithmetic is refused for, and that layers added later keep it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ascent.models import exact
from ascent.models.exact import device_problem, model_problem
from ascent.models.layer_patching import EXACT, FAST, kernels_of, patch_layers
from ascent.models.load import load
from ascent.models.probe import attention_calls
from ascent.models.tiny import create


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cpu_has_nothing_to_switch(tmp_path: Path, dtype: str) -> None:
    with pytest.raises(
        ValueError, match=r"model.arithmetic=exact: .* on a CPU, where float32 already gives equal"
    ):
        load(create(tmp_path / "llama"), dtype=dtype, arithmetic="exact")


def test_an_unknown_arithmetic_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="arithmetic='quick' does not exist; use fast or exact"):
        load(create(tmp_path / "llama"), arithmetic="quick")


@pytest.mark.parametrize(
    ("capability", "why"), [((8, 0), "on 8.0"), ((10, 0), "on 10.0"), ((9, 0), "")]
)
def test_gpus_without_a_proof(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], why: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    assert why in device_problem(torch.device("cuda")) and bool(why) == bool(
        device_problem(torch.device("cuda"))
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"dtype": "float32"}, "not in float32"),
        ({"quantize": "nf4"}, "quantized"),
        ({"dropout": True}, "dropout"),
    ],
)
def test_requests_without_a_proof(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], why: str
) -> None:
    monkeypatch.setattr(exact, "device_problem", lambda device: "")
    asked = {"device": "cuda", "dtype": "bfloat16", "quantize": None, "dropout": False}
    exact.check_request("exact", **asked)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=why):
        exact.check_request("exact", **asked | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("llama", ""),
        ("qwen2", ""),
        ("qwen3", ""),
        ("qwen3_moe", "mixture of experts"),
        ("gemma2", "soft caps"),
        ("mistral", ""),
        ("gemma3", "sliding windows"),
        ("gpt_oss", "mixture of experts"),
    ],
)
def test_families(tmp_path: Path, family: str, why: str) -> None:
    module = load(create(tmp_path / family, family=family)).module
    problem = model_problem(module, (), attention_calls(module))
    assert why in problem and bool(why) == bool(problem)


def test_heads_that_the_flash_kernel_does_not_take_are_refused(tmp_path: Path) -> None:
    module = load(create(tmp_path / "llama", hidden=48, heads=4)).module
    problem = model_problem(module, (), attention_calls(module))
    assert problem == "has attention heads of size [12]; it must be a multiple of 8"


def test_a_norm_of_unknown_formula_and_loose_matrices_are_refused(tmp_path: Path) -> None:
    module = load(create(tmp_path / "llama")).module
    calls = attention_calls(module)
    assert "weight matrices outside" in model_problem(module, ("some.weight",), calls)
    module.get_submodule("model.norm").formula = None  # type: ignore[assignment]
    assert "a norm of unknown formula (model.norm)" in model_problem(module, (), calls)


def test_layers_that_are_added_later_get_the_kernels_of_the_others(tmp_path: Path) -> None:
    module = load(create(tmp_path / "llama")).module
    assert kernels_of(module) is FAST
    patch_layers(module, "exact")
    module.get_submodule("model.layers.0.mlp").up_proj = nn.Linear(4, 4)
    assert patch_layers(module).kernels == "exact"
    assert module.get_submodule("model.layers.0.mlp.up_proj").kernels is EXACT  # type: ignore[comparison-overlap]
    assert module.config._attn_implementation == EXACT.attention
