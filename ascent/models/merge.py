"""An adapter added into the weights beside it: the plain model that equals one with LoRA."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel


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
