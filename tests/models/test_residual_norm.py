"""Layers whose sums and norms are computed together give the bits of the stock layers; others are left alone."""

import copy

import pytest
import torch
from torch import nn

from ascent.models import layer_patching, residual_norm
from tests.models.packing import FAMILIES, batch_of, random_model

WANT = frozenset({"logprobs_T"})


def layers_of(model):
    return model.module.base_model.layers


def decoders(model):
    return [layer for layer in layers_of(model) if layer_patching._kind(layer) == "decoder"]


def on_every_device(monkeypatch):
    """The way of CUDA, with plain sums and norms, on a CPU."""
    monkeypatch.setattr(
        layer_patching, "_use_residual_norm", lambda hidden_states: not torch.is_grad_enabled()
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_bits_are_the_stock_layers(family, monkeypatch):
    model = random_model(family)
    with torch.no_grad():
        expected = model.outputs(batch_of(), WANT)["logprobs_T"]
        on_every_device(monkeypatch)
        assert torch.equal(model.outputs(batch_of(), WANT)["logprobs_T"], expected)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_common_families_are_known_and_every_sum_is_one_with_its_norm(family, monkeypatch):
    model = random_model(family)
    assert len(decoders(model)) == len(layers_of(model)) > 1
    on_every_device(monkeypatch)
    together, add_norm = [], residual_norm.add_norm

    def spy(x, residual, norm):
        together.append(norm)
        return add_norm(x, residual, norm)

    monkeypatch.setattr(residual_norm, "add_norm", spy)
    with torch.no_grad():
        model.outputs(batch_of(), WANT)
    base = model.module.base_model
    wanted = [
        norm for layer in base.layers for norm in (layer.post_attention_layernorm, *layer.next_norm)
    ]
    assert (
        together == wanted
        and wanted[-1] is base.norm
        and wanted[1] is base.layers[1].input_layernorm
    )


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "granite", "mixtral"])
def test_other_wirings_keep_their_code(family):
    if family not in FAMILIES:
        pytest.skip(f"no tiny model of {family}")
    assert decoders(random_model(family)) == []


def test_a_factor_or_one_more_module_is_another_wiring():
    layer = copy.deepcopy(layers_of(random_model("llama"))[0])
    assert residual_norm.is_pre_norm(layer)
    stock = type(layer).stock

    class Scaled(stock):
        def forward(self, hidden_states, **options):
            return self.factor * super().forward(hidden_states, **options)

    scaled = copy.deepcopy(layer)
    scaled.__class__ = Scaled
    scaled.factor = 1.0
    assert residual_norm.is_pre_norm(scaled)
    scaled.factor = 0.5
    assert not residual_norm.is_pre_norm(scaled)
    assert layer_patching._kind(layer) == "decoder"
    layer.post_attention_layernorm = nn.Identity()  # nothing that is patched as a norm
    assert layer_patching._kind(layer) is None
    layer.extra = nn.Identity()
    assert not residual_norm.is_pre_norm(layer)


def test_a_norm_takes_only_what_was_computed_for_it(monkeypatch):
    model = random_model("llama")
    on_every_device(monkeypatch)
    norm, other = (
        layers_of(model)[1].input_layernorm,
        layers_of(model)[2 % len(layers_of(model))].post_attention_layernorm,
    )
    with torch.no_grad():
        x, residual = torch.randn(2, 1, 5, norm.weight.shape[0], dtype=norm.weight.dtype)
        total, normed = residual_norm.add_norm(x, residual, norm)
        total.normed_ahead = (norm, normed, total._version)
        assert norm(total) is normed
        assert residual_norm.normed_ahead(other, total) is None
        assert residual_norm.normed_ahead(norm, total.clone()) is None
        total += 1  # in place: what was computed is no longer its norm
        assert residual_norm.normed_ahead(norm, total) is None
    with torch.enable_grad():
        total.normed_ahead = (norm, normed, total._version)
        assert norm(total).requires_grad  # the weight's gradient is not lost


def test_weights_that_are_divided_over_ranks_are_not_read_ahead(monkeypatch):
    """FSDP gathers the next layer's weights later."""
    model = random_model("llama")
    first = layers_of(model)[0]
    (norm,) = first.next_norm

    class Shard(torch.Tensor):
        pass

    norm.weight = nn.Parameter(norm.weight.detach().as_subclass(Shard))
    seen = []
    first.register_forward_hook(lambda layer, args, out: seen.append(hasattr(out, "normed_ahead")))
    on_every_device(monkeypatch)
    with torch.no_grad():
        model.outputs(batch_of(), WANT)
    assert seen == [False]
