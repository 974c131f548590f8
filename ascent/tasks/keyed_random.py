"""Random numbers that depend on a key alone, so that an item depends on (seed, index) and not on the order.

BLAKE2b of (key, counter) gives eight draws. A new version of Python does not change a task.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class KeyedRandom:
    """The random stream of one key."""

    def __init__(self, *key: str | int) -> None:
        self._key = "/".join(str(part) for part in key)
        self._hashes = 0
        self._left: list[int] = []

    def bits(self) -> int:
        """64 random bits."""
        if not self._left:
            self._hashes += 1
            self._left = list(
                struct.unpack(
                    ">8Q", hashlib.blake2b(f"{self._key}#{self._hashes}".encode()).digest()
                )
            )
        return self._left.pop()

    def uniform(self) -> float:
        """Uniform in the open interval (0, 1)."""
        return ((self.bits() >> 12) + 0.5) / 2**52

    def integer(self, low: int, high: int) -> int:
        """Uniform from low to high, both included. The bias of the remainder is below 2^-50 for small ranges."""
        if low > high:
            raise ValueError(f"integer({low}, {high}): the lower bound must not exceed the upper")
        return low + self.bits() % (high - low + 1)

    def choice(self, items: Sequence[T]) -> T:
        return items[self.integer(0, len(items) - 1)]

    def gumbel(self) -> float:
        """Standard Gumbel; utilities plus Gumbel noise, sorted, are a Plackett-Luce ranking."""
        return -math.log(-math.log(self.uniform()))


def stable_hash(text: str) -> int:
    """A 64-bit hash, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
