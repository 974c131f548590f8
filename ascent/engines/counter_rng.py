"""Sampling noise as a function of who asks: (run seed, prompt id, sample number, position), and of nothing else.

Batch composition, scheduling and restarts therefore cannot change what is sampled. Who asks becomes two 32-bit words;
position and token are counters. A hash of the four gives a uniform number, that gives an exponential one, E, and
argmax(logprobs - log E) is a sample of the distribution (Gumbel's trick: -log E is a Gumbel number).

The hash is two rounds of a 32-bit finaliser (shift, multiply, shift, multiply, shift; multipliers 0x7feb352d and
0x846ca68b, by Chris Wellons), a bijection, so within one position no two tokens share a number. It is written for numpy
here, for the GPU in `native/kernels.py` and in `c_extension.c`; the integers are equal.

Axes: B rows, V tokens.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Words = NDArray[np.uint32]

FIRST, SECOND = 0x9E3779B9, 0x85EBCA6B  # any two odd constants: they keep the two words' streams apart
CHUNK = 1 << 16  # numbers made at once: they stay in the cache of a core
# Arrays, because numpy takes longer to begin with a number of its own or Python's.
_TWO = np.array([[FIRST], [SECOND]], dtype=np.uint32)
_16, _15, _ONE, _OTHER = (np.array(each, dtype=np.uint32) for each in (16, 15, 0x7FEB352D, 0x846CA68B))
_HALF, _UNIT, _LEAST = (np.array(each, dtype=np.float32) for each in (0.5, -(2.0**-32), -1 + 2.0**-24))


def words(seed: int, prompt_id: str, sample: int) -> tuple[int, int]:
    """Who asks, as two 32-bit words."""
    digest = hashlib.blake2b(f"{seed}/{sample}/{prompt_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def exponentials(words_B2: Any, positions_B: Any, size: int) -> Tensor:
    """(B, size) exponential numbers in float32, all above 0: the smaller, the likelier its token is drawn."""
    words_B2 = np.asarray(words_B2, dtype=np.uint32)
    positions_B = np.asarray(positions_B, dtype=np.uint32)
    first_B, second_B = _mixed(words_B2.T ^ _mixed(positions_B + _TWO))
    numbers_BV = np.empty((len(positions_B), size), dtype=np.float32)
    step = max(1, CHUNK // size)
    tokens_V = np.arange(size, dtype=np.uint32)
    for start in range(0, len(positions_B), step):
        rows = slice(start, start + step)
        hashed = _mixed(tokens_V ^ first_B[rows, None])
        hashed += second_B[rows, None]
        numbers = numbers_BV[rows]
        np.copyto(numbers, _mixed(hashed))
        np.add(numbers, _HALF, numbers)
        np.multiply(numbers, _UNIT, numbers)
        np.maximum(numbers, _LEAST, out=numbers)
    # log1p of a small number keeps its digits; that of one near 1 loses them, where nobody is drawn.
    out_BV = torch.from_numpy(numbers_BV).log1p_()
    np.negative(numbers_BV, numbers_BV)
    return out_BV


def gumbel(seed: int, prompt_id: str, sample: int, position: int, size: int) -> Tensor:
    """`size` Gumbel numbers in float32 for one position of one request."""
    return -exponentials([words(seed, prompt_id, sample)], [position], size)[0].log()


def _mixed(x: Words) -> Words:
    """A bijection of 32-bit words in which every bit of the input moves about half of the output's. In place."""
    shifted = np.right_shift(x, _16)
    np.bitwise_xor(x, shifted, x)
    np.multiply(x, _ONE, x)
    np.bitwise_xor(x, np.right_shift(x, _15, shifted), x)
    np.multiply(x, _OTHER, x)
    return np.bitwise_xor(x, np.right_shift(x, _16, shifted), x)
