"""Disable dropout: with it, log-probs of sampling and training would come from two different models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def disable_config_dropout(config: PreTrainedConfig) -> list[str]:
    """Set every dropout rate of a config to 0; returns a note if that changed anything."""
    found = {}
    for each in {id(part): part for part in (config, config.get_text_config())}.values():
        for name, rate in vars(each).items():
            if _is_rate(name, rate):
                found[name] = rate
    for name in found:
        setattr(config.get_text_config(), name, 0.0)
        if name in vars(config):
            setattr(config, name, 0.0)
    return (
        [f"dropout is off ({', '.join(f'{name} was {rate}' for name, rate in found.items())})"]
        if found
        else []
    )


def disable_dropout(modules: Iterable[nn.Module]) -> None:
    """Set the rate of every dropout module, and every dropout attribute, to 0.

    The model then computes the same in training mode (which gradient checkpointing requires) as in eval mode.
    """
    for module in modules:
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        for name, rate in list(vars(module).items()):
            if _is_rate(name, rate):
                setattr(module, name, 0.0)


def _is_rate(name: str, rate: object) -> bool:
    # jitter_noise is the router noise of mixtures of experts.
    named = "dropout" in name or name.endswith(("pdrop", "layerdrop", "jitter_noise"))
    return named and isinstance(rate, float) and rate > 0
