"""A 4-bit base: the levels of the paper, gradients of the inputs, LoRA on top, merged into what it was trained on."""

import importlib.util

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from ascent.models import quantize
from ascent.models.load import load
from ascent.models.lora import adapter_off, attach, restore
from ascent.models.tiny import create
from tests.models.adapted import logprobs, trained
from tests.models.packing import batch_of, one_by_one

pytest.importorskip("peft")
bnb = pytest.importorskip("bitsandbytes")

NUMBERS = {"hidden": 64, "layers": 2, "initializer_range": 0.25}
# The 16 levels of NF4 (QLoRA, appendix E).
LEVELS = (
    *(-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0),
    *(0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0),
)


@pytest.fixture
def folder(tmp_path):
    return create(tmp_path / "base", **NUMBERS)


def layers(model):
    return {
        name: each for name, each in model.module.named_modules() if quantize.is_quantized(each)
    }


def dense(layer):
    return bnb.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)


def test_every_linear_layer_but_the_head_is_quantized_to_the_nearest_level(folder):
    model, plain = load(folder, quantize="nf4"), load(folder)
    found = layers(model)
    assert len(found) == 2 * 7
    assert "lm_head" not in found
    weights = dict(plain.module.named_modules())
    levels = torch.tensor(LEVELS)
    for name, layer in found.items():
        blocks = weights[name].weight.detach().reshape(-1, 64)
        scales = blocks.abs().amax(1, keepdim=True)
        nearest = levels[(blocks / scales)[..., None].sub(levels).abs().argmin(-1)] * scales
        # The scales themselves have 8 bits, so they are off by up to half a step of their own.
        error = (dense(layer).reshape(-1, 64) - nearest).abs() / scales
        assert float(error.max()) < 0.02
    assert "quantized (nf4)" in " ".join(model.notes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_the_inputs_is_that_of_the_dequantized_weights(dtype):
    torch.manual_seed(0)
    stock = nn.Linear(128, 96, bias=True)
    layer = bnb.nn.Linear4bit(128, 96, bias=True, quant_type="nf4", compute_dtype=dtype)
    layer.load_state_dict(stock.state_dict())
    layer.to("cpu")
    x = torch.randn(5, 128, dtype=dtype, requires_grad=True)
    upstream = torch.randn(5, 96, dtype=dtype)
    out = quantize.linear(layer.to(dtype), x)
    (grad,) = torch.autograd.grad(out, x, upstream)
    weight = dense(layer).to(dtype).double()
    exact = x.detach().double() @ weight.T + layer.bias.detach().to(dtype).double()
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 4e-2}[dtype]
    torch.testing.assert_close(out.double(), exact, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        grad.double(), upstream.double() @ weight, rtol=tolerance, atol=tolerance
    )
    assert out.dtype == grad.dtype == dtype


def test_lora_trains_on_it_and_off_it_is_the_base(folder):
    base_T = logprobs(load(folder, quantize="nf4"))
    packed = {
        name: each.weight.detach().clone()
        for name, each in layers(load(folder, quantize="nf4")).items()
    }
    model = trained(folder, quantize="nf4")
    assert all(".lora_" in name for name, _ in model.named_parameters())
    with adapter_off(model):
        assert torch.equal(logprobs(model), base_T)
    assert float((logprobs(model) - base_T).abs().max()) > 1e-2
    for name, layer in layers(model).items():
        assert torch.equal(layer.weight, packed[name.removesuffix(".base_layer")])


def test_training_and_eval_mode_compute_the_same(folder):
    """bitsandbytes repacks weights in eval mode and multiplies in bfloat16, where the CPU can."""
    model = trained(folder, quantize="nf4")
    model.train()
    before = logprobs(model)
    model.eval()
    with torch.no_grad():
        assert torch.equal(logprobs(model), before)


@pytest.mark.parametrize("head", ["tokens", "scalar", "both"])
def test_the_adapter_is_restored_bit_by_bit_and_merged_into_the_weights_it_was_trained_on(
    folder, tmp_path, head
):
    model = trained(folder, quantize="nf4", head=head)
    model.save(tmp_path / "saved")
    again = attach(load(folder, quantize="nf4", head=head), rank=4)
    restore(again, tmp_path / "saved")
    want = frozenset({"scores_B"} if head == "scalar" else {"logprobs_T"})
    merged = load(tmp_path / "saved", head=head)
    ours, theirs, plain = (each.outputs(batch_of(), want) for each in (model, again, merged))
    for name in want:
        assert torch.equal(ours[name].nan_to_num(), theirs[name].nan_to_num())
        torch.testing.assert_close(plain[name], ours[name], rtol=0, atol=1e-5, equal_nan=True)


def test_merged_it_is_a_plain_model(folder, tmp_path):
    model = trained(folder, quantize="nf4")
    model.save(tmp_path / "saved")
    load(tmp_path / "saved").save(tmp_path / "plain")
    stock = AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain", attn_implementation="eager"
    ).eval()
    torch.testing.assert_close(
        one_by_one(stock, batch_of())[0].detach(), logprobs(model), rtol=0, atol=1e-5
    )
    assert not layers(load(tmp_path / "plain"))


def test_weights_take_a_seventh_of_float32(folder):
    model = load(folder, quantize="nf4")
    total, quantized = quantize.num_parameters(model.module)
    assert total == sum(each.numel() for each in load(folder).module.parameters())
    state = model.module.state_dict()
    stored = sum(
        each.numel() * each.element_size() for name, each in state.items() if ".weight." in name
    )
    packed = sum(layer.weight.numel() for layer in layers(model).values())
    assert packed * 2 == quantized
    assert stored < packed  # scales, and tables that are large only beside layers as small as these


def test_what_cannot_be_is_refused(folder, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="quantize='int3' is not supported; use nf4"):
        load(folder, quantize="int3")
    attach(load(folder)).save(tmp_path / "adapter")
    with pytest.raises(
        ValueError, match="is a LoRA adapter; export it first and quantize the result"
    ):
        load(tmp_path / "adapter", quantize="nf4")
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "bitsandbytes" else real(name)
    )
    with pytest.raises(
        ImportError,
        match=r"need the package bitsandbytes; .*pip install 'ascent-posttrain\[qlora\]'",
    ):
        load(folder, quantize="nf4")
