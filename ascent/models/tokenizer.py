"""Load a tokenizer, with different end and padding tokens.

Packed batches have no padding, but saved models do: a classifier in transformers scores the last token that is not
padding, so with padding equal to the end token it would score the token before the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ascent.maths.to_bytes import to_bytes
from ascent.models.hf_logging import quiet_transformers

# Padding and reserved tokens of common models; used only if they are not the end token.
PADS = (
    "<pad>",
    "[PAD]",
    "<|pad|>",
    "<|padding|>",
    "<|finetune_right_pad_id|>",
    "<|endoftext|>",
    "<|vision_pad|>",
)
SPARE = ("<|reserved_special_token_0|>", "<unused0>", "<unk>", "<|unk|>", "[UNK]")


def load_tokenizer(
    folder: Path | str, *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"no tokenizer can be loaded from {folder}: {first_line(error)}; save the tokenizer beside the model "
            "(tokenizer.save_pretrained)"
        ) from error
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    if len(tokenizer) == 0 or not tokenizer("a").input_ids:
        raise ValueError(
            f"no tokenizer can be loaded from {folder}: there are no tokenizer files; save it there first"
        )
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"the tokenizer of {folder} has no end token (eos_token), so no text could learn to stop; set eos_token in "
            "its tokenizer_config.json"
        )
    return tokenizer


def separate_padding(
    tokenizer: PreTrainedTokenizerBase, rows: int, *, classifies: bool
) -> str | None:
    """Make the padding token differ from the end token; returns a note if it changed.

    `rows` is the number of token embeddings: a new token needs a spare row. Without one, padding is the end token,
    unless the model `classifies`.
    """
    end, before = tokenizer.eos_token_id, tokenizer.pad_token
    if before is not None and tokenizer.pad_token_id != end:
        return None
    known = tokenizer.get_vocab()
    spare = [
        token
        for token in (*PADS, *SPARE)
        if token in known and known[token] not in (end, tokenizer.bos_token_id)
    ]
    was = (
        "there was no padding token" if before is None else f"padding was the end token {before!r}"
    )
    if not spare and len(tokenizer) >= rows:
        if classifies:
            raise ValueError(
                f"padding is {before!r} and the end token is {tokenizer.eos_token!r}; they must differ in a reward "
                f"model, and the vocabulary of {rows} has no spare token; set pad_token in tokenizer_config.json to a "
                "token that no text has, or add one to tokenizer and model"
            )
        tokenizer.pad_token = tokenizer.eos_token
        return f"{was}, and no token is spare; padding is the end token, which a reward model could not have"
    tokenizer.add_special_tokens({"pad_token": spare[0] if spare else "<pad>"})
    return f"{was}; padding is now {tokenizer.pad_token!r} (id {tokenizer.pad_token_id})"


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def decode(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> str:
    """The text of these tokens, without special ones. As a tensor: transformers looks at each token of a list."""
    if not tokens:
        return ""
    ids = torch.frombuffer(bytearray(to_bytes("q", tokens)), dtype=torch.int64)
    return str(tokenizer.decode(ids, skip_special_tokens=True))
