"""The four seams are really in the path of a forward, and change nothing else about a model."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from ascent.models import attention, layer_patching
from ascent.models.layer_patching import FAST, patch_layers, wide_product
from tests.models.packing import FAMILIES, batch_of, random_model, stock_twin

WANT = frozenset({"logprobs_T"})


@pytest.mark.parametrize("family", FAMILIES)
def test_every_linear_norm_attention_and_head_passes_through(family, monkeypatch):
    model = random_model(family)
    seen = {"linear": 0, "norm": 0, "head": 0}

    def spy(kind, stock):
        def call(*args):
            seen[kind] += 1
            return stock(*args)

        return call

    kernels = replace(
        FAST,
        linear=spy("linear", FAST.linear),
        norm=spy("norm", FAST.norm),
        product=spy("head", FAST.product),
    )
    monkeypatch.setitem(layer_patching.KERNEL_SETS, "fast", kernels)
    installed = patch_layers(model.module)
    with torch.no_grad():
        model.outputs(batch_of(), WANT)
    parts = list(model.module.modules())
    assert (
        seen["linear"] == sum(isinstance(part, nn.Linear) for part in parts) - 1
    )  # the head has its own seam
    assert (
        seen["norm"]
        == sum(type(part).__name__.endswith("Norm") for part in parts)
        == installed.norms
    )
    assert seen["head"] > 0
    assert model.module.config._attn_implementation == attention.NAME
    assert installed.linears == seen["linear"] + 1
    # The products of experts are transformers' own; nothing else is out of reach.
    assert {name.split(".")[4] for name in installed.unpatched} <= {"experts", "gate", "router"}
    assert (installed.unpatched == ()) == (model.module.config._experts_implementation == "eager")


def test_the_modules_stay_what_they_were():
    model = random_model("llama")
    stock = stock_twin(model.module)
    for (name, ours), (other, theirs) in zip(
        model.module.named_modules(), stock.named_modules(), strict=True
    ):
        assert name == other
        assert isinstance(ours, type(theirs))
    assert list(model.module.state_dict()) == list(stock.state_dict())
    assert patch_layers(model.module) == patch_layers(model.module)  # once or twice is the same


def test_a_copy_uses_its_own_weights():
    model = random_model("llama")
    twin = copy.deepcopy(model)
    before_T = model.outputs(batch_of(), WANT)["logprobs_T"]
    with torch.no_grad():
        for weight in model.module.parameters():
            weight.mul_(0.5)
    assert torch.equal(twin.outputs(batch_of(), WANT)["logprobs_T"], before_T)
    assert not torch.equal(model.outputs(batch_of(), WANT)["logprobs_T"], before_T)


def test_weights_out_of_reach_are_named():
    """GPT-2 keeps its matrices in a class of its own: the fast form works, an exact one would have to refuse it."""
    config = AutoConfig.for_model(
        "gpt2", vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=16
    )
    unpatched = patch_layers(AutoModelForCausalLM.from_config(config)).unpatched
    assert "transformer.h.0.attn.c_attn.weight" in unpatched
    assert not any("wte" in name for name in unpatched)


def test_a_kernel_set_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="kernels='quick' does not exist; choose from fast, exact"):
        patch_layers(random_model("llama").module, "quick")


def test_products_of_half_precision_are_wide():
    a, b = torch.full((1, 4096), 1.0).bfloat16(), torch.full((4096, 1), 0.01).bfloat16()
    exact = float(a.double() @ b.double())
    assert wide_product(a, b).dtype == torch.float32
    assert abs(float(wide_product(a, b)) - exact) < 1e-4 * exact
    assert wide_product(a.double(), b).dtype == torch.float64
