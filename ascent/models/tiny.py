"""Tiny random models with a real tokenizer, for tests, tutorials and toy tasks.

folder = create("tiny", family="llama", texts=["1 + 1 = 2"], vocabulary=300, seed=0)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Tokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ascent.models.hf_logging import quiet_transformers

PAD, END = "<pad>", "<eos>"
BYTES = 256

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
# Multi-head latent attention: keys and values have other sizes than `hidden // heads`, and as many heads.
LATENT = {"num_key_value_heads": None, "kv_lora_rank": 16, "q_lora_rank": 16, "head_dim": 8} | {
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}

# Config values of a family beyond the shared ones. SmolLM2 is Llama with tied embeddings.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "smollm2": {"tie_word_embeddings": True},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": None},
    "gemma": {},
    "gemma2": {},
    "phi": {},
    "gemma3": {},
    "olmo2": {},
    "olmo3": {},
    "granite": {},
    "cohere2": {},
    "starcoder2": {},
    "phi3": {},
    "glm4": {},
    "smollm3": {},
    "qwen2_moe": {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 32},
    "qwen3_moe": {**EXPERTS, "num_experts": 4},
    "olmoe": {"num_experts_per_tok": 2, "num_experts": 4},
    "mixtral": {"num_experts_per_tok": 2, "num_local_experts": 4},
    "deepseek_v2": {**EXPERTS, **LATENT, "topk_method": "group_limited_greedy"},
    "deepseek_v3": {**EXPERTS, **LATENT},
    "gpt_oss": {
        "num_experts_per_tok": 2,
        "num_local_experts": 4,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 256,
        },
    },
}
MODEL_TYPES = {"smollm2": "llama", "gemma3": "gemma3_text"}

DIGIT_TOKENS = {
    "texts": [
        f"{word} {a} {b} =" for word in ("sort", "list") for a in range(10) for b in range(10)
    ],
    "vocabulary": BYTES + 19,
}
# Sizes and tokenizers for some tasks. `digits` has one token per digit; its large rope_theta generalizes to longer
# lists. `digits_nope` has no position encodings, so no position is new to it in a longer list; it learns to sort faster
# with a key-value head for every head, and with larger initial weights than the default of large models.
NAMED: dict[str, dict[str, Any]] = {
    "digits": {
        "family": "llama",
        **DIGIT_TOKENS,
        "layers": 4,
        "intermediate": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "digits_nope": {
        "family": "smollm3",
        **DIGIT_TOKENS,
        "layers": 3,
        "heads": 8,
        "key_value_heads": 8,
        "intermediate": 128,
        "no_rope_layers": [0, 0, 0],
        "tie_word_embeddings": False,
        "initializer_range": 0.05,
    },
}


def tiny_tokenizer(
    texts: Sequence[str] = (),
    *,
    vocabulary: int | None = None,
    special: Sequence[str] = (),
    chat_template: str | None = None,
) -> PreTrainedTokenizerBase:
    """A byte-level tokenizer without unknown tokens. Padding is id 0, the end token id 1.

    Without texts each byte is a token; with texts, frequent runs of bytes are merged until there are `vocabulary`
    tokens. `special` adds tokens that are never split (chat markers, say).
    """
    named = [PAD, END, *special]
    smallest = BYTES + len(named)
    if vocabulary is not None and (vocabulary < smallest or not texts):
        raise ValueError(
            f"vocabulary={vocabulary}: {BYTES} bytes and {len(named)} special tokens take {smallest}, and more are "
            "learned from texts; give texts and a larger number, or leave vocabulary out"
        )
    symbols = [*named, *bytes_to_unicode().values()]
    none: dict[str, Any] = {"unk_token": None, "bos_token": None}
    tokenizer: PreTrainedTokenizerBase = GPT2Tokenizer(
        vocab={symbol: i for i, symbol in enumerate(symbols)},
        merges=[],
        **none,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=list(special),
    )
    if vocabulary is not None:
        tokenizer = tokenizer.train_new_from_iterator(
            [list(texts)], vocab_size=vocabulary, show_progress=False
        )
    tokenizer.chat_template = chat_template
    return tokenizer


def tiny_model(
    family: str,
    vocabulary: int,
    *,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    key_value_heads: int = 2,
    intermediate: int | None = None,
    longest: int = 1024,
    seed: int = 0,
    **extra: Any,
) -> PreTrainedModel:
    """A causal model with random weights from `seed`. `extra` goes to the family's config."""
    if family not in FAMILIES:
        raise ValueError(f"family={family!r} is not known; use one of {', '.join(FAMILIES)}")
    if hidden % heads or heads % key_value_heads:
        raise ValueError(
            f"hidden={hidden}, heads={heads}, key_value_heads={key_value_heads}: heads must divide hidden, and "
            "key_value_heads must divide heads"
        )
    config = AutoConfig.for_model(
        MODEL_TYPES.get(family, family),
        **{
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": key_value_heads,
            "head_dim": hidden // heads,
            "intermediate_size": 4 * hidden if intermediate is None else intermediate,
            "max_position_embeddings": longest,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "bos_token_id": None,
            **FAMILIES[family],
            **extra,
        },
    )
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return module


def named(folder: str | Path, name: str, *, seed: int = 0) -> Path:
    """One of NAMED, or any family in its default size."""
    if name not in NAMED and name not in FAMILIES:
        raise ValueError(
            f"no tiny model named {name!r}; there are {', '.join((*FAMILIES, *NAMED))}"
        )
    return create(folder, seed=seed, **NAMED.get(name, {"family": name}))


def create(
    folder: str | Path,
    *,
    family: str = "llama",
    texts: Sequence[str] = (),
    vocabulary: int | None = None,
    special: Sequence[str] = (),
    chat_template: str | None = None,
    seed: int = 0,
    **numbers: Any,
) -> Path:
    """Create a tokenizer and a model, and save both in `folder`."""
    folder = Path(folder)
    tokenizer = tiny_tokenizer(
        texts, vocabulary=vocabulary, special=special, chat_template=chat_template
    )
    module = tiny_model(family, len(tokenizer), seed=seed, **numbers)
    module.config.pad_token_id, module.config.eos_token_id = (
        tokenizer.pad_token_id,
        tokenizer.eos_token_id,
    )
    with quiet_transformers():
        module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
