"""Sampling noise as a function of who asks: (run seed, prompt id, sample number, position), and of nothing else.

Batch composition, scheduling and restarts therefore cannot change what is sampled.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def gumbel(seed: int, prompt_id: str, sample: int, position: int, size: int) -> Tensor:
    """`size` Gumbel numbers in float32: argmax(log-probs + gumbel) is a sample of the distribution."""
    text = f"{seed}/{sample}/{position}/{prompt_id}".encode()
    key = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") & (2**63 - 1)
    uniform = torch.rand(size, generator=torch.Generator().manual_seed(key), dtype=torch.float64)
    # In float64, so that neither end of (0, 1) rounds to an infinity.
    return (-torch.log(-torch.log(uniform.clamp(1e-300, 1 - 1e-16)))).float()
