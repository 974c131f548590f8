"""Which dtype of the weights this machine computes in fast."""

from __future__ import annotations

import time

import torch

SLOW = 3.0  # times the default dtype's time of a matrix product, from which it is worth a line
SIZES = {"cpu": (128, 512), "cuda": (4096, 4096)}  # rows and columns of the product that is timed


def default_dtype() -> str:
    """bfloat16 on a GPU that computes in it, float32 elsewhere: without hardware for it, bfloat16 is emulated."""
    cuda = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if cuda else "float32"


def describe_slow_dtype(dtype: str) -> str:
    """A sentence where a matrix product takes much longer in `dtype` than in the default; empty where it does not."""
    fast = default_dtype()
    ratio = 1.0 if dtype == fast else product_seconds(dtype) / product_seconds(fast)
    if ratio < SLOW:
        return ""
    return (
        f"model.dtype={dtype} is slow here: a matrix product takes {ratio:.0f} times as long as in {fast}; set "
        f"model.dtype={fast}"
    )


def product_seconds(dtype: str) -> float:
    """The time of a matrix product, best of three."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, size = SIZES[device]
    x = torch.ones(rows, size, dtype=getattr(torch, dtype), device=device)
    weight = torch.ones(size, size, dtype=x.dtype, device=device)
    times = []
    for _ in range(4):  # the first one is not counted
        start = time.perf_counter()
        (x @ weight)[0, 0].item()  # waits for the device
        times.append(time.perf_counter() - start)
    return min(times[1:])
