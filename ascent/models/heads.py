"""Scalar heads: one number per hidden state, for critics and reward models.

A model with such a head is transformers' own sequence classifier with one label, so what we save is what transformers
loads. Its head, `score`, is linear and has no bias: a reward is known up to a constant, and a critic can make its own.
At the start the weights are normal with standard deviation 1 / sqrt(hidden size + 1) (ALGORITHMS 4.2).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

VALUE_HEAD_FILE = "value_head.safetensors"


def scalar_head(size: int, *, seed: int, dtype: torch.dtype = torch.float32) -> nn.Linear:
    """A fresh head for hidden states of this size."""
    head = nn.Linear(size, 1, bias=False, dtype=dtype)
    start(head, seed=seed)
    return head


def start(head: nn.Linear, *, seed: int) -> None:
    """Draw the starting weights, the same ones on every device and in every precision (up to rounding)."""
    drawn = torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        head.weight.copy_(drawn * (head.in_features + 1) ** -0.5)


def score_layer(module: nn.Module) -> nn.Linear:
    """The scalar head of a sequence classifier."""
    head: Any = getattr(module, "score", None)
    plain = isinstance(head, nn.Linear) and head.bias is None
    if not plain or head.out_features != 1:
        raise ValueError(
            f"{type(module).__name__} has no linear head `score` with one output and no bias (found {head!r}); "
            "use an architecture whose sequence classifier in transformers has one"
        )
    assert isinstance(head, nn.Linear)
    return head


def save_value_head(head: nn.Linear, folder: Path) -> None:
    """Beside the model's own files: the head of a critic that shares the policy's trunk."""
    save_file({"score.weight": head.weight.detach().contiguous().cpu()}, folder / VALUE_HEAD_FILE)


def load_value_head(folder: Path, size: int, dtype: torch.dtype) -> nn.Linear | None:
    """The head saved in this folder, or None where there is none."""
    path = folder / VALUE_HEAD_FILE
    if not path.exists():
        return None
    weight = load_file(path)["score.weight"]
    if weight.shape != (1, size):
        raise ValueError(f"{path} holds weights of shape {tuple(weight.shape)}; the model needs (1, {size})")
    head = nn.Linear(size, 1, bias=False, dtype=dtype)
    with torch.no_grad():
        head.weight.copy_(weight)
    return head
