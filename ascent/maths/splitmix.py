"""A hash of 64-bit integers: splitmix64, whose products and sums wrap around. The same on every device."""

from __future__ import annotations

from torch import Tensor


def splitmix64(bits: Tensor) -> Tensor:
    """Of every int64. The constant that is added first keeps 0 from being its own hash."""
    bits = bits - 7046029254386353131  # 2^64 / golden ratio
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        bits = (bits ^ shift_right(bits, shift)) * factor
    return bits ^ shift_right(bits, 31)


def shift_right(bits: Tensor, by: int) -> Tensor:
    """Filling with zeros, which torch's shift of signed integers does not."""
    return (bits >> by) & (2 ** (64 - by) - 1)
