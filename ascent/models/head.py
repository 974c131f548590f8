"""The output head of a language model: its weights, and its logits.

Axes: R rows, C a part of the vocabulary, D hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ascent.models.layer_patching import FAST, KernelSet


@dataclass(frozen=True)
class Head:
    """The output head: logits = softcap * tanh(scale * (h @ weight.T + bias) / softcap)."""

    weight_VD: Tensor
    bias_V: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None
    kernels: KernelSet = FAST


class TileConfig(NamedTuple):
    """The parameters of one call, constant over its tiles."""

    scale: float
    softcap: float | None
    temperature: float
    entropy: bool
    collision: bool
    tile: tuple[int, int]
    kernels: KernelSet
    triton: bool = False


def head_logits(hidden_RD: Tensor, head: Head) -> Tensor:
    """All logits of some rows, in float32 at least and without temperature, for sampling."""
    config = TileConfig(head.scale, head.softcap, 1.0, False, False, (0, 0), head.kernels)
    return tile_logits(hidden_RD, head.weight_VD, head.bias_V, config)


def tile_logits(
    hidden_RD: Tensor, weight_CD: Tensor, bias_C: Tensor | None, config: TileConfig
) -> Tensor:
    """One tile of tempered logits, in float32 at least."""
    logits_RC = config.kernels.product(hidden_RD, weight_CD.mT)
    if bias_C is not None:
        logits_RC += bias_C
    if config.scale != 1:
        logits_RC *= config.scale
    if config.softcap is not None:
        logits_RC.div_(config.softcap).tanh_().mul_(config.softcap)
    return logits_RC if config.temperature == 1 else logits_RC.div_(config.temperature)
