"""The resource limits of one program."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Per program. `memory_mb` limits every process and, measured 50 times a second, all of them together."""

    wall_seconds: float = 10.0
    test_seconds: float = 5.0
    cpu_seconds: int = 10
    memory_mb: int = 512
    processes: int = 16
    file_mb: int = 16
    temp_mb: int = 32
    output_kb: int = 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(
                    f"Limits.{field.name}={value}, but a limit is a finite number above 0"
                )
        if self.memory_mb < 64:
            raise ValueError(
                f"Limits.memory_mb={self.memory_mb}, but the interpreter alone needs 64"
            )
        if self.processes < 4:
            raise ValueError(
                f"Limits.processes={self.processes}, but the sandbox itself uses 3; give at least 4"
            )

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}
