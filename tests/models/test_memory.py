"""The forecast: plain arithmetic, checked by hand and against what a training step really keeps."""

from dataclasses import replace

import pytest
import torch

from ascent.models.forward import enable_gradient_checkpointing
from ascent.models.memory import Shape, forecast, shape_of, with_critic
from tests.models.packing import batch_of, random_model

# A model of the size of Qwen2.5-0.5B.
HALF = Shape(494_000_000, 494_000_000, 24, 896, 4864, 14, 2, 64)


def test_bfloat16_training_takes_twenty_bytes_a_weight():
    """2 for the weight, 2 for its gradient, 4 for their sum, 4 for the master, 8 for Adam's moments."""
    seen = forecast(HALF, tokens=1, dtype="bfloat16")
    assert seen.weights + seen.gradients + seen.masters + seen.moments == 20 * HALF.parameters
    wide = forecast(HALF, tokens=1, dtype="float32")
    assert wide.weights + wide.gradients + wide.masters + wide.moments == 16 * HALF.parameters
    assert wide.masters == 0
    assert seen.total == sum(
        (seen.weights, seen.gradients, seen.masters, seen.moments, seen.activations, seen.logits)
    )


def test_an_offloaded_optimizer_is_on_the_host_but_for_three_buckets():
    """7.6 billion weights: on the GPU 8 bytes each, of them 6 for gradients, on the host 12."""
    shape = replace(HALF, parameters=7_600_000_000, trained=7_600_000_000)
    beside, seen = (
        forecast(shape, tokens=1, dtype="bfloat16", optimizer_offload=on) for on in (False, True)
    )
    assert seen.host == 12 * shape.trained == beside.total - seen.total + seen.staging
    assert seen.staging == 288 * 2**20
    assert (beside.host, beside.staging, seen.masters, seen.moments) == (0, 0, 0, 0)
    both = with_critic(seen, seen)
    assert both.host == 2 * seen.host and both.total == seen.total + seen.weights + seen.staging
    assert (
        forecast(HALF, tokens=1, optimizer_offload=True).host == 8 * HALF.trained
    )  # float32 has no masters


def test_a_quantized_weight_takes_half_a_byte_and_its_share_of_the_scales():
    quantized = 400_000_000
    seen, dense = (
        forecast(replace(HALF, trained=4_000_000, quantized=n), tokens=1, dtype="bfloat16")
        for n in (quantized, 0)
    )
    assert dense.weights - seen.weights == pytest.approx(quantized * (2 - 4.127 / 8), rel=1e-4)
    assert replace(seen, weights=0) == replace(dense, weights=0)


def test_lora_keeps_state_for_the_adapter_alone():
    seen = forecast(
        Shape(494_000_000, 4_000_000, 24, 896, 4864, 14, 2, 64), tokens=1, dtype="bfloat16"
    )
    assert (seen.weights, seen.gradients, seen.masters, seen.moments) == (
        988_000_000,
        24_000_000,
        16_000_000,
        32_000_000,
    )


def test_activations_grow_with_tokens_and_shrink_with_recomputing():
    one, two = (forecast(HALF, tokens=tokens).activations for tokens in (1000, 2000))
    assert two == 2 * one
    assert forecast(HALF, tokens=1000, gradient_checkpointing=True).activations < one / 8
    assert forecast(HALF, tokens=1000, training=False).activations < one / 8
    assert forecast(HALF, tokens=1000, training=False).moments == 0


def test_logits_do_not_grow_with_tokens():
    assert forecast(HALF, tokens=10).logits == forecast(HALF, tokens=100_000).logits == 128 * 2**20
    assert forecast(HALF, tokens=10, budget_bytes=7).logits == 7


def test_a_reference_that_stays_has_weights_and_nothing_else():
    alone, beside = (forecast(HALF, tokens=1, dtype="bfloat16", reference=n) for n in (0, 1000))
    assert beside.total - alone.total == beside.reference == 2000


def test_a_critic_keeps_what_stays_and_shares_what_passes():
    """At 1000 tokens the policy's activations are the larger; a critic of twice the weights has larger gradients."""
    policy, critic = (
        forecast(HALF, tokens=1000, dtype="bfloat16", budget_bytes=size)
        for size in (128 * 2**20, 0)
    )
    both = with_critic(policy, critic)
    assert (
        both.critic == 14 * HALF.parameters
    )  # 2 for the weight, 4 for its master, 8 for the moments
    assert both.total == policy.total + both.critic
    wide = replace(HALF, parameters=2 * HALF.parameters, trained=2 * HALF.trained)
    larger = forecast(wide, tokens=1000, dtype="bfloat16", budget_bytes=0)
    both = with_critic(policy, larger)
    assert (both.gradients, both.activations, both.logits) == (
        larger.gradients,
        larger.activations,
        0,
    )
    assert both.weights == policy.weights and both.critic == 28 * HALF.parameters


def test_the_numbers_of_a_configuration():
    module = random_model("qwen3").module
    shape = shape_of(module.config, sum(weight.numel() for weight in module.parameters()))
    assert (shape.layers, shape.hidden, shape.intermediate, shape.heads, shape.key_value_heads) == (
        2,
        32,
        128,
        4,
        2,
    )
    assert shape.head_size == 8
    assert shape.trained == shape.parameters


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_the_forecast_is_near_what_autograd_keeps(family, gradient_checkpointing):
    """Between 0.7 and 1.5 times the bytes of distinct tensors kept for the backward pass (float32, CPU)."""
    model = random_model(family, hidden=64, layers=6, sliding_window=None).train()
    if gradient_checkpointing:
        enable_gradient_checkpointing(model.module)
    weights = {weight.untyped_storage().data_ptr() for weight in model.module.parameters()}
    kept = {}

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out_T = model.outputs(batch_of((300, 200)), frozenset({"logprobs_T"}))["logprobs_T"]
    measured = sum(size for pointer, size in kept.items() if pointer not in weights)
    shape = shape_of(model.module.config, 1)
    said = forecast(shape, tokens=500, gradient_checkpointing=gradient_checkpointing).activations
    if (
        gradient_checkpointing
    ):  # the one layer that is whole again exists in the backward pass, not yet here
        said -= forecast(shape, tokens=500).activations // 6
    assert out_T.requires_grad
    assert 0.7 < said / measured < 1.5, (said, measured)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"tokens": 0}, "tokens=0"), ({"dtype": "int8"}, "dtype='int8' is not supported")],
)
def test_impossible_numbers_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        forecast(HALF, **{"tokens": 1, **change})
