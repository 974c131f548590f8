"""Counter-based sampling noise: a function of (seed, prompt id, sample number, position, token) only.

Batch composition, scheduling and restarts therefore cannot change what is sampled. Seed, prompt id and sample number
become a key of two 32-bit words; position and token are counters. A hash of the four gives a uniform number, that an
exponential one, E, and argmax(logprobs - log E) is a sample of the distribution (the Gumbel-max trick: -log E is a
Gumbel number).

The hash is two rounds of a 32-bit finalizer (shift, multiply, shift, multiply, shift; multipliers 0x7feb352d and
0x846ca68b, by Chris Wellons), a bijection, so within one position no two tokens share a number. It is implemented in
numpy here, in Triton in `native/sampling_triton.py` and in C in `c_extension.c`; the integers are equal.

Axes: B rows, V tokens.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

UInt32s = NDArray[np.uint32]

OFFSET0, OFFSET1 = (
    0x9E3779B9,
    0x85EBCA6B,
)  # any two odd constants: they separate the streams of the two words
CHUNK = 1 << 16  # numbers per iteration: they fit the cache of a core
# Arrays, because numpy has more overhead with scalars.
_OFFSETS = np.array([[OFFSET0], [OFFSET1]], dtype=np.uint32)
_16, _15, _MULTIPLIER0, _MULTIPLIER1 = (
    np.array(each, dtype=np.uint32) for each in (16, 15, 0x7FEB352D, 0x846CA68B)
)
_HALF, _SCALE, _MIN = (
    np.array(each, dtype=np.float32) for each in (0.5, -(2.0**-32), -1 + 2.0**-24)
)


def request_key(seed: int, prompt_id: str, sample: int) -> tuple[int, int]:
    """The random key of a request: two 32-bit words."""
    digest = hashlib.blake2b(f"{seed}/{sample}/{prompt_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def exponentials(keys_B2: Any, positions_B: Any, size: int) -> Tensor:
    """(B, size) exponential numbers in float32, all above 0: the smaller, the likelier its token."""
    keys_B2 = np.asarray(keys_B2, dtype=np.uint32)
    positions_B = np.asarray(positions_B, dtype=np.uint32)
    first_B, second_B = _mix(keys_B2.T ^ _mix(positions_B + _OFFSETS))
    numbers_BV = np.empty((len(positions_B), size), dtype=np.float32)
    step = max(1, CHUNK // size)
    tokens_V = np.arange(size, dtype=np.uint32)
    for start in range(0, len(positions_B), step):
        rows = slice(start, start + step)
        hashed = _mix(tokens_V ^ first_B[rows, None])
        hashed += second_B[rows, None]
        numbers = numbers_BV[rows]
        np.copyto(numbers, _mix(hashed))
        np.add(numbers, _HALF, numbers)
        np.multiply(numbers, _SCALE, numbers)
        np.maximum(numbers, _MIN, out=numbers)
    # log1p is precise for small numbers; near 1 it is not, but no token is sampled there.
    out_BV = torch.from_numpy(numbers_BV).log1p_()
    np.negative(numbers_BV, numbers_BV)
    return out_BV


def gumbel(seed: int, prompt_id: str, sample: int, position: int, size: int) -> Tensor:
    """`size` Gumbel numbers in float32 for one position of one request."""
    return -exponentials([request_key(seed, prompt_id, sample)], [position], size)[0].log()


def _mix(x: UInt32s) -> UInt32s:
    """A bijection of 32-bit words: every input bit flips about half of the output bits. In place."""
    shifted = np.right_shift(x, _16)
    np.bitwise_xor(x, shifted, x)
    np.multiply(x, _MULTIPLIER0, x)
    np.bitwise_xor(x, np.right_shift(x, _15, shifted), x)
    np.multiply(x, _MULTIPLIER1, x)
    return np.bitwise_xor(x, np.right_shift(x, _16, shifted), x)
