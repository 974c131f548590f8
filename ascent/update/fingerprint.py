"""Fingerprints of weights: whether a checkpoint's optimizer state belongs to its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def fingerprint(weights: Mapping[str, Tensor]) -> dict[str, int]:
    """The sum of each tensor's bits as integers: exact, so the same on any device."""
    views = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return {
        name: int(
            weight.detach().reshape(-1).view(views[weight.element_size()]).sum(dtype=torch.int64)
        )
        for name, weight in weights.items()
    }


def add_fingerprints(shards: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The fingerprint of weights from those of their shards: sums of integers, which wrap around as tensors' do."""
    return {name: (sum(own[name] for own in shards) + 2**63) % 2**64 - 2**63 for name in shards[0]}
