"""Random numbers that are a function of their key: the same item for the same (seed, index), in any order, anywhere.

Built on BLAKE2b and nothing else, so a new version of Python cannot change a task. A hash of (key, counter) gives eight
draws, then comes the next counter.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Noise:
    """A stream of draws that belongs to one key."""

    def __init__(self, *key: str | int) -> None:
        self._key = "/".join(str(part) for part in key)
        self._hashes = 0
        self._left: list[int] = []

    def bits(self) -> int:
        """64 random bits."""
        if not self._left:
            self._hashes += 1
            self._left = list(struct.unpack(">8Q", hashlib.blake2b(f"{self._key}#{self._hashes}".encode()).digest()))
        return self._left.pop()

    def unit(self) -> float:
        """Uniform in the open interval (0, 1)."""
        return ((self.bits() >> 12) + 0.5) / 2**52

    def whole(self, low: int, high: int) -> int:
        """Uniform from low to high, both included. The bias of the remainder is below 2^-50 for small ranges."""
        if low > high:
            raise ValueError(f"whole({low}, {high}): the lower end must not exceed the upper")
        return low + self.bits() % (high - low + 1)

    def choice(self, items: Sequence[T]) -> T:
        return items[self.whole(0, len(items) - 1)]

    def gumbel(self) -> float:
        """Standard Gumbel noise: adding it to utilities and sorting draws a Plackett-Luce ranking."""
        return -math.log(-math.log(self.unit()))


def hashed(text: str) -> int:
    """A 64-bit hash that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
