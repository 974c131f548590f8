"""Padding never is the end token, and a tokenizer without an end is refused."""

import pytest

from ascent.models.tiny import tiny_tokenizer
from ascent.models.tokenizer import load_tokenizer, separate_padding


def test_a_padding_token_of_its_own_is_kept():
    tokenizer = tiny_tokenizer()
    assert separate_padding(tokenizer, len(tokenizer), classifies=True) is None
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<pad>", "<eos>")


def test_padding_that_is_the_end_token_moves_to_a_spare_token():
    tokenizer = tiny_tokenizer(special=["<|endoftext|>"])
    tokenizer.pad_token = tokenizer.eos_token
    said = separate_padding(tokenizer, len(tokenizer), classifies=True)
    assert said == "padding was the end token '<eos>'; padding is now '<pad>' (id 0)"
    assert tokenizer.pad_token_id == 0 != tokenizer.eos_token_id


@pytest.fixture
def bare(monkeypatch):
    """A tokenizer that pads with its end and has no token that could serve instead."""
    monkeypatch.setattr("ascent.models.tiny.PAD", "<first>")
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def test_a_new_padding_token_uses_a_spare_embedding(bare):
    count = len(bare)
    said = separate_padding(bare, count + 1, classifies=True)
    assert f"padding is now '<pad>' (id {count})" in said
    assert bare.pad_token_id == count


def test_without_a_spare_embedding_a_reward_model_is_refused(bare):
    with pytest.raises(
        ValueError,
        match="must differ in a reward model, and the vocabulary of 258 has no spare token",
    ):
        separate_padding(bare, len(bare), classifies=True)


@pytest.mark.parametrize("before", ["<eos>", None])
def test_without_a_spare_embedding_a_policy_pads_with_its_end(bare, before):
    """GPT-2 and many base models have neither a padding token nor room for one."""
    bare.pad_token, count = before, len(bare)
    said = separate_padding(bare, count, classifies=False)
    assert said.endswith(
        "no token is spare; padding is the end token, which a reward model could not have"
    )
    assert bare.pad_token_id == bare.eos_token_id and len(bare) == count


def test_no_padding_token_at_all(bare):
    bare.pad_token = None
    assert separate_padding(bare, 300, classifies=True).startswith(
        "there was no padding token; padding is now '<pad>'"
    )


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no tokenizer can be loaded"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_an_end_is_refused(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no end token"):
        load_tokenizer(tmp_path)
