"""Padding never is the end token, and a tokenizer without an end is refused."""

import pytest

from ascent.models.tiny import tiny_tokenizer
from ascent.models.tokenizer import load_tokenizer, separate_padding


def test_a_padding_token_of_its_own_is_kept():
    tokenizer = tiny_tokenizer()
    assert separate_padding(tokenizer, len(tokenizer)) is None
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<pad>", "<eos>")


def test_padding_that_is_the_end_token_moves_to_a_spare_token():
    tokenizer = tiny_tokenizer(special=["<|endoftext|>"])
    tokenizer.pad_token = tokenizer.eos_token
    said = separate_padding(tokenizer, len(tokenizer))
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
    said = separate_padding(bare, count + 1)
    assert f"padding is now '<pad>' (id {count})" in said
    assert bare.pad_token_id == count


def test_without_a_spare_embedding_it_is_refused(bare):
    with pytest.raises(ValueError, match="they must differ, and the vocabulary of 258 has no spare token"):
        separate_padding(bare, len(bare))


def test_no_padding_token_at_all(bare):
    bare.pad_token = None
    assert separate_padding(bare, 300).startswith("there was no padding token; padding is now '<pad>'")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no tokenizer can be loaded"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_an_end_is_refused(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no end token"):
        load_tokenizer(tmp_path)
