"""LoRA: off it is the base model, bit for bit; on it alone is trained; a saved adapter is restored."""

import builtins

import pytest
import torch
from transformers import AutoModelForCausalLM

from ascent.models.load import load
from ascent.models.lora import adapter_off, attach, restore
from ascent.models.tiny import create
from tests.models.adapted import logprobs, trained
from tests.models.packing import batch_of

pytest.importorskip("peft")

WANT = frozenset({"logprobs_T"})
NUMBERS = {"hidden": 32, "layers": 2, "initializer_range": 0.25}


@pytest.fixture
def folder(tmp_path):
    return create(tmp_path / "base", **NUMBERS)


def test_a_fresh_adapter_changes_nothing(folder):
    base_T = logprobs(load(folder))
    model = attach(load(folder), rank=4)
    assert torch.equal(logprobs(model), base_T)


def test_switched_off_it_is_the_base_model_bit_for_bit(folder):
    base_T = logprobs(load(folder))
    model = trained(folder)
    on_T = logprobs(model)
    with adapter_off(model) as reference:
        assert torch.equal(logprobs(reference), base_T)
    assert torch.equal(logprobs(model), on_T)
    assert float((on_T - base_T).abs().max()) > 1e-2


def test_only_the_adapter_is_trained_and_the_base_never_moves(folder):
    model = trained(folder)
    names = [name for name, _ in model.named_parameters()]
    assert names
    assert all(".lora_" in name for name in names)
    stock = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    ours = {
        name.replace(".base_layer", ""): each for name, each in model.module.state_dict().items()
    }
    assert all(torch.equal(ours[name], weight) for name, weight in stock.items())
    # Switching off and on again leaves it trainable.
    with adapter_off(model):
        pass
    assert [name for name, _ in model.named_parameters()] == names


def test_every_linear_layer_but_the_head_carries_one(folder):
    layers = {name.split(".lora_")[0] for name, _ in attach(load(folder)).named_parameters()}
    assert len(layers) == 2 * 7
    one = attach(load(folder), targets=["q_proj"])
    assert {name.split(".")[-4] for name, _ in one.named_parameters()} == {"q_proj"}


def test_a_reward_model_trains_its_head_too(folder):
    model = trained(folder, head="scalar")
    names = [name for name, _ in model.named_parameters()]
    assert "module.score.weight" in names
    assert sum(".lora_" not in name for name in names) == 1


@pytest.mark.parametrize("head", ["tokens", "scalar", "both"])
def test_restored_it_has_the_adapter_and_the_heads_that_were_saved(folder, tmp_path, head):
    model = trained(folder, head=head)
    if model.value_head is not None:
        with torch.no_grad():
            model.value_head.weight += 1
    model.save(tmp_path / "saved")
    again = attach(load(folder, head=head), rank=4)
    restore(again, tmp_path / "saved")
    ours, theirs = (dict(each.named_parameters()) for each in (model, again))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_seed_decides_the_adapter(folder):
    first, same, other = (
        [each.detach() for each in attach(load(folder), seed=seed).parameters()]
        for seed in (1, 1, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_what_cannot_be_is_refused(folder):
    model = load(folder)
    with pytest.raises(ValueError, match="no LoRA adapter to switch off"), adapter_off(model):
        pass
    with pytest.raises(ValueError, match="rank=0"):
        attach(model, rank=0)
    with pytest.raises(ValueError, match="already has"):
        attach(attach(model))
    with pytest.raises(ValueError, match="leave lm_head out of LoRA's targets"):
        attach(load(folder), targets=["lm_head"]).outputs(batch_of(), WANT)


def test_without_peft_the_message_says_what_to_install(folder, monkeypatch):
    model, real = load(folder), builtins.__import__

    def without(name, *args, **kwargs):
        if name == "peft":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'ascent-posttrain\[lora\]'"):
        attach(model)
