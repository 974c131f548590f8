"""LoRA through peft: small trained matrices beside frozen ones. Switched off, the model is its own reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ascent.models import heads, seams
from ascent.models.model import LanguageModel

if TYPE_CHECKING:
    from peft import LoraConfig

ALL_LINEAR = "all-linear"


def attach(
    model: LanguageModel,
    *,
    rank: int = 16,
    alpha: float = 32.0,
    targets: Sequence[str] | str = ALL_LINEAR,
    dropout: float = 0.0,
    seed: int = 0,
) -> LanguageModel:
    """The same model with an adapter that alone is trained (a scalar head stays trainable too).

    The second matrix of each pair starts at 0, so the model starts as it was. Dropout stays 0 for RL: with it,
    log-probs of the same policy would differ from one forward to the next.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ImportError("LoRA needs the package peft; install it with: pip install 'ascent[lora]'") from error
    if model.adapter is not None:
        raise ValueError("the model already carries a LoRA adapter; load it again before attaching another")
    if rank < 1:
        raise ValueError(f"rank={rank} gives an adapter without weights; use >= 1")
    config: LoraConfig = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]
        target_modules=targets if isinstance(targets, str) else list(targets),
        exclude_modules=None if model.module.get_output_embeddings() is not None else ["score"],
        lora_dropout=dropout,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapter = get_peft_model(model.module, config)
    seams.install(model.module)
    if model.module.get_output_embeddings() is None:
        heads.score_layer(model.module).weight.requires_grad_(True)
    return replace(model, adapter=adapter)


@contextmanager
def adapter_off(model: LanguageModel) -> Iterator[LanguageModel]:
    """Inside, the model is the one before LoRA: the reference of a KL penalty or of DPO, at no memory."""
    if model.adapter is None:
        raise ValueError("the model has no LoRA adapter to switch off; load a second copy as the reference")
    with model.adapter.disable_adapter():
        yield model


def merged_state(module: PreTrainedModel) -> dict[str, Tensor]:
    """The weights of the plain model that equals this one with its adapter on. The model itself is not touched."""
    from peft.tuners.lora import LoraLayer

    deltas = {
        f"{name}.base_layer.weight": _delta(part)
        for name, part in module.named_modules()
        if isinstance(part, LoraLayer)
    }
    merged: dict[str, Tensor] = {}
    for name, weight in module.state_dict().items():
        if ".lora_" in name:
            continue
        plain = name.replace(".base_layer.", ".")
        merged[plain] = (weight + deltas[name].to(weight.dtype)) if name in deltas else weight
    return merged


def _delta(layer: Any) -> Tensor:
    delta: Tensor = layer.get_delta_weight(layer.active_adapters[0])
    return delta
