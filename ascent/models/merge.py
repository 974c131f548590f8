"""An adapter added into the weights beside it: the plain model that equals one with LoRA; and the weights it is for."""

from __future__ import annotations

from typing import Any

import torch
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


def mark_of_base(module: PreTrainedModel) -> int:
    """The bits of all frozen weights, added up as integers: exact, whatever the device; another base has another."""
    views = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    frozen = [weight.detach() for weight in module.parameters() if not weight.requires_grad]
    return sum(int(each.reshape(-1).view(views[each.element_size()]).sum(dtype=torch.int64)) for each in frozen)
