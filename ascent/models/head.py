"""The output head of a language model, as data.

Axes: D hidden size, V vocabulary.
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
