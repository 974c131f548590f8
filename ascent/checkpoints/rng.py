"""The states of the global random number generators of Python, numpy and torch (CPU and all GPUs)."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from ascent.parallel.ranks import SINGLE, Ranks

State = dict[str, Any]


def capture(ranks: Ranks = SINGLE) -> State:
    """The states as numbers and tensors, for a checkpoint: those of rank 0, and of the `others`."""
    own = _capture(ranks.count)
    return (
        own if ranks.count == 1 else {**own, "others": ranks.gather(own, "the random states")[1:]}
    )


def _capture(ranks: int) -> State:
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
        "cuda": _cuda_states(ranks) if torch.cuda.is_available() else [],
    }


def _cuda_states(ranks: int) -> list[torch.Tensor]:
    """Of all GPUs, or of several ranks that of the rank's own."""
    return list(torch.cuda.get_rng_state_all()) if ranks == 1 else [torch.cuda.get_rng_state()]


def restore(state: State, ranks: Ranks = SINGLE) -> None:
    """Restore the states of `capture`. A rank that was not there gets rank 0's."""
    several = ranks.count > 1 or "others" in state
    state = (
        [state, *state.get("others", ())][ranks.rank]
        if ranks.rank <= len(state.get("others", ()))
        else state
    )
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if len(state["cuda"]) != devices and not several:
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
    if devices and several:
        torch.cuda.set_rng_state(state["cuda"][0])
    elif devices:
        torch.cuda.set_rng_state_all(state["cuda"])


def seed(number: int) -> None:
    """Seed every global generator."""
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)
