"""The noise of `ascent.engines.counter_rng` inside Triton kernels: the integers are equal, the floats to rounding."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mix(x):
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def stream_keys(key0, key1, positions, row, OFFSET0: tl.constexpr, OFFSET1: tl.constexpr):
    position = tl.load(positions + row).to(tl.uint32, bitcast=True)
    first = mix(tl.load(key0 + row).to(tl.uint32, bitcast=True) ^ mix(position + OFFSET0))
    second = mix(tl.load(key1 + row).to(tl.uint32, bitcast=True) ^ mix(position + OFFSET1))
    return first, second


@triton.jit
def exponential(tokens, first, second):
    hashed = mix(mix(tokens.to(tl.uint32) ^ first) + second)
    u = (hashed.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    u = tl.minimum(u, 0.99999994)
    # Where u is small, the series of -log(1 - u) keeps its precision.
    small = u + u * u * 0.5 + u * u * u * 0.33333334
    return tl.where(u < 1e-3, small, -tl.log(1 - u))
