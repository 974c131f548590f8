"""Tiny models are ordinary: reproducible, saved like any other, with a tokenizer that can write every text."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ascent.models.tiny import FAMILIES, create, named, tiny_model, tiny_tokenizer

STRANGE = "Zwölf  Boxkämpfer\n\tjagen 東京 🎉 <eo 1+1=2"


@pytest.mark.parametrize("texts", [(), ["the cat sat on the mat"] * 3])
def test_every_text_comes_back(texts):
    tokenizer = tiny_tokenizer(texts, vocabulary=270 if texts else None)
    assert tokenizer.decode(tokenizer(STRANGE).input_ids) == STRANGE


def test_training_merges_frequent_text():
    plain, learned = (
        tiny_tokenizer(),
        tiny_tokenizer(["the cat sat on the mat"] * 3, vocabulary=270),
    )
    assert len(plain) == 258
    assert 258 < len(learned) <= 270
    assert len(learned("the cat").input_ids) < len(plain("the cat").input_ids) == 7
    assert (learned.pad_token_id, learned.eos_token_id) == (0, 1)


def test_special_tokens_are_never_split():
    tokenizer = tiny_tokenizer(special=["<|user|>"])
    assert tokenizer("<|user|>hi<eos>").input_ids == [2, *tokenizer("hi").input_ids, 1]
    assert (
        tokenizer.decode(tokenizer("<|user|>hi<eos>").input_ids, skip_special_tokens=True) == "hi"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_is_an_ordinary_folder(family, tmp_path):
    folder = create(
        tmp_path, family=family, hidden=16, heads=2, key_value_heads=1, layers=1, seed=4
    )
    module, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    again = tiny_model(
        family, len(tokenizer), hidden=16, heads=2, key_value_heads=1, layers=1, seed=4
    )
    other = tiny_model(
        family, len(tokenizer), hidden=16, heads=2, key_value_heads=1, layers=1, seed=5
    )
    for name, weight in again.state_dict().items():
        assert torch.equal(module.state_dict()[name], weight)
    assert any(
        not torch.equal(other.state_dict()[name], weight)
        for name, weight in again.state_dict().items()
    )
    assert module.config.eos_token_id == tokenizer.eos_token_id == 1
    tied = module.get_output_embeddings().weight is module.get_input_embeddings().weight
    assert tied == (
        family in ("smollm2", "gemma", "gemma2", "gemma3", "cohere2", "starcoder2", "smollm3")
    )


@pytest.mark.parametrize(("name", "positions_matter"), [("digits", True), ("digits_nope", False)])
def test_digits_nope_has_no_position_encodings(name, positions_matter, tmp_path):
    folder = named(tmp_path, name)
    ids = AutoTokenizer.from_pretrained(folder)("sort 7 3 =", return_tensors="pt").input_ids
    assert ids.shape[1] == 4
    module = AutoModelForCausalLM.from_pretrained(folder)
    first, stretched = (
        module(ids, position_ids=torch.arange(4)[None] * step).logits for step in (1, 9)
    )
    assert torch.equal(first, stretched) != positions_matter


def test_making_a_model_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    tiny_model("llama", 10, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tiny_model("bert", 10), "family='bert' is not known; use one of llama"),
        (lambda: tiny_model("llama", 10, hidden=30, heads=4), "heads must divide hidden"),
        (
            lambda: tiny_tokenizer(["a"], vocabulary=100),
            "vocabulary=100: 256 bytes and 2 special tokens take 258",
        ),
        (lambda: tiny_tokenizer(vocabulary=300), "learned from texts"),
    ],
)
def test_what_cannot_be_made_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
