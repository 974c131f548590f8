"""The states of the global random number generators of Python, numpy and torch (CPU and all GPUs)."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

State = dict[str, Any]


def capture() -> State:
    """The states as numbers and tensors, for a checkpoint."""
    version, numbers, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=False)
    return {
        "python": [version, list(numbers), gauss],
        "numpy": {
            "generator": legacy["bit_generator"],
            "key": [int(each) for each in legacy["state"]["key"]],
            "position": int(legacy["state"]["pos"]),
            "has_gauss": int(legacy["has_gauss"]),
            "gauss": float(legacy["gauss"]),
        },
        "torch": torch.get_rng_state(),
        "cuda": list(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else [],
    }


def restore(state: State) -> None:
    """Restore the states of `capture`."""
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if len(state["cuda"]) != devices:
        raise ValueError(
            f"the checkpoint has the random states of {len(state['cuda'])} GPUs and this machine shows {devices}; the "
            "same bits need the same number: set CUDA_VISIBLE_DEVICES"
        )
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    saved = state["numpy"]
    np.random.set_state(
        {
            "bit_generator": saved["generator"],
            "state": {"key": np.array(saved["key"], dtype=np.uint32), "pos": saved["position"]},
            "has_gauss": saved["has_gauss"],
            "gauss": saved["gauss"],
        }
    )
    torch.set_rng_state(state["torch"])
    if devices:
        torch.cuda.set_rng_state_all(state["cuda"])


def seed(number: int) -> None:
    """Seed every global generator."""
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)
