"""Ragged packed batches, and what stock transformers says about the same sequences one at a time."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from ascent.maths.segments import Segments
from ascent.models import layer_patching
from ascent.models.model import LanguageModel
from ascent.models.tiny import tiny_model, tiny_tokenizer

LENGTHS = (7, 3, 0, 11, 3, 1)
# Weights large enough that a wrong mask, scale or window moves the result by far more than the tolerance.
LOUD = {"hidden": 32, "layers": 2, "initializer_range": 0.25}
MIXED = ["sliding_attention", "full_attention"]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 4},
    "gemma": {},
    "gemma2": {"sliding_window": 4, "attn_logit_softcapping": 1.0, "final_logit_softcapping": 2.0},
    "phi": {},
    "smollm2": {},
    "gemma3": {"sliding_window": 4, "layer_types": MIXED},
    "olmo2": {},
    "olmo3": {"sliding_window": 4, "layer_types": MIXED},
    "granite": {"logits_scaling": 2.0, "attention_multiplier": 0.2, "residual_multiplier": 0.7},
    "cohere2": {"sliding_window": 4, "layer_types": MIXED, "logit_scale": 0.5},
    "starcoder2": {"sliding_window": 4},
    "phi3": {"sliding_window": 4},
    "glm4": {},
    "smollm3": {"no_rope_layers": [1, 0]},
    "qwen2_moe": {},
    "qwen3_moe": {},
    "olmoe": {},
    "mixtral": {"sliding_window": 4},
    "deepseek_v2": {},
    "deepseek_v3": {},
    "gpt_oss": {"sliding_window": 4},
}


def batch_of(
    lengths: tuple[int, ...] = LENGTHS, *, vocabulary: int = 258, seed: int = 0
) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(seed)
    segments = Segments.from_lengths(lengths)
    return {
        "tokens_T": torch.randint(2, vocabulary, (segments.total,), generator=rng),
        "positions_T": torch.cat([torch.arange(length) for length in lengths]),
        "segments": segments,
    }


def random_model(family: str, **numbers: Any) -> LanguageModel:
    """A loud tiny model with our seams in it."""
    tokenizer = tiny_tokenizer()
    module = tiny_model(family, len(tokenizer), **{**LOUD, **FAMILIES[family], **numbers})
    layer_patching.patch_layers(module)
    return LanguageModel(module, tokenizer)


def stock_twin(module: PreTrainedModel, attention: str = "eager") -> PreTrainedModel:
    """The same weights in an untouched model of transformers, with its own attention."""
    config = type(module.config).from_dict(module.config.to_dict())
    twin = type(module)._from_config(config, attn_implementation=attention)
    twin.load_state_dict(module.state_dict())
    return twin.train(module.training)


def one_by_one(
    stock: PreTrainedModel, batch: dict[str, Any], temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropy of each sequence in a forward of its own, put side by side."""
    logprobs, entropies = [], []
    for tokens in batch["tokens_T"].split(batch["segments"].lengths_B.tolist()):
        if tokens.numel():
            # In float64 from here on: a float32 sum over a large vocabulary would be the less exact side.
            logs = (
                stock(tokens[None], use_cache=False).logits[0].double() / temperature
            ).log_softmax(-1)[:-1]
            logprobs += [logs.new_zeros(1), logs.gather(1, tokens[1:, None])[:, 0]]
            entropies += [logs.new_zeros(1), -(logs.exp() * logs).sum(-1)]
    return torch.cat(logprobs).float(), torch.cat(entropies).float()


class Meter(TorchDispatchMode):
    """Counts the bytes of everything allocated under it: the most alive at once, and the largest single piece."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak, self.largest = 0, 0, 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {
            leaf.untyped_storage()._cdata
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor)
        }
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage(), given)
        return out

    def _count(self, storage: Any, given: set[int]) -> None:
        if storage in self._seen or storage._cdata in given:
            return
        self._seen.add(storage)
        size = storage.nbytes()
        self.live += size
        self.peak, self.largest = max(self.peak, self.live), max(self.largest, size)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.live -= size
