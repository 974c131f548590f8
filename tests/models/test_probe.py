"""Architectures that packing would silently break are refused when they are loaded."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ascent.models import layer_patching
from ascent.models.head import Head
from ascent.models.model import output_head
from ascent.models.probe import check_config, check_model
from tests.models.packing import FAMILIES, random_model

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 40,
    "intermediate_size": 24,
}


def made(model_type, **numbers):
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(model_type, **{**SMALL, **numbers})
    )
    layer_patching.patch_layers(module)
    return module


@pytest.mark.parametrize("family", FAMILIES)
def test_the_families_pass(family):
    module = random_model(family).module
    check_model(module, output_head(module))


@pytest.mark.parametrize(
    ("model_type", "numbers"),
    [
        ("cohere", {"logit_scale": 0.3, "num_key_value_heads": 1, "pad_token_id": 0}),
        ("granite", {"logits_scaling": 5.0, "pad_token_id": 0}),
        ("olmo2", {"pad_token_id": 0}),
        ("gpt_neox", {}),
        ("gpt2", {"n_embd": 16, "n_layer": 2, "n_head": 2}),
        ("phi3", {"pad_token_id": 0, "sliding_window": 3}),
        (
            "qwen3_moe",
            {
                "moe_intermediate_size": 8,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "num_key_value_heads": 1,
            },
        ),
    ],
)
def test_other_architectures_that_use_the_interface_pass_too(model_type, numbers):
    module = made(model_type, **numbers)
    check_model(module, output_head(module))


def test_an_architecture_with_attention_of_its_own_is_refused():
    with pytest.raises(ValueError, match="has 2 layers but called the attention interface 0 times"):
        check_model(made("falcon", new_decoder_architecture=False), None)


def test_a_model_that_mixes_sequences_is_refused():
    """A running sum over the flat axis, as a recurrent layer would leave it."""
    module = random_model("llama").module
    module.model.norm.register_forward_hook(lambda _, __, out: out + 0.01 * out.cumsum(1))
    with pytest.raises(ValueError, match="lets one packed sequence change another"):
        check_model(module, None)


def test_an_unknown_head_is_refused():
    module = random_model("llama").module
    head = output_head(module)
    with pytest.raises(ValueError, match="transforms its logits in an unknown way"):
        check_model(module, Head(head.weight_VD, head.bias_V, scale=0.5))


def test_a_window_that_attention_is_not_told_of_is_refused():
    module = random_model("llama").module
    module.config.sliding_window = 4
    with pytest.raises(
        ValueError,
        match=r"declares sliding windows \[4, 4\] but calls attention with \[None, None\]",
    ):
        check_model(module, None)


def test_damaged_weights_are_refused():
    module = random_model("llama").module
    with torch.no_grad():
        module.model.norm.weight[0] = torch.nan
    with pytest.raises(ValueError, match="its weights are damaged"):
        check_model(module, None)


def test_the_mode_is_left_as_it_was():
    module = random_model("llama").module
    for mode in (True, False):
        check_model(module.train(mode), None)
        assert module.training == mode


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (AutoConfig.for_model("t5"), "is an encoder-decoder"),
        (AutoConfig.for_model("llama4_text"), "layers of kind chunked_attention"),
        (AutoConfig.for_model("qwen3_next"), "layers of kind linear_attention"),
        (
            AutoConfig.for_model("llama", quantization_config={"quant_method": "gptq"}),
            "holds quantized weights",
        ),
    ],
    ids=lambda given: getattr(given, "model_type", ""),
)
def test_configurations_that_cannot_work_are_refused(config, words):
    with pytest.raises(ValueError, match=words):
        check_config(config, "some/model")


def test_models_that_attend_both_ways_are_refused():
    with pytest.raises(ValueError, match="attends in both directions"):
        check_model(made("bert"), None)
