"""Host memory for tensors that a GPU copies from and to, pinned where it lies.

torch's pinned allocator rounds every allocation up to a power of two, so that 28 GiB take 32. Here the memory is plain,
and the CUDA driver is told to keep its pages in place.
"""

from __future__ import annotations

import weakref
from pathlib import Path

import torch
from torch import Tensor

# Files below /sys/fs/cgroup that limit the memory of a container: folder, limit, usage (versions 2 and 1).
CGROUPS = (
    ("", "memory.max", "memory.current"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


class HostBuffer:
    """A float32 vector of zeros in host memory, pinned if `device` is a GPU.

    It stays pinned as long as this object lives. Views of `values` may live longer, in plain memory.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.values = torch.zeros(
            size
        )  # touches its pages, in all threads; pinning them is then fast
        if size and device.type == "cuda":
            cudart = torch.cuda.cudart()
            status = cudart.cudaHostRegister(self.values.data_ptr(), self.values.nbytes, 0)
            if status != cudart.cudaError.success:
                raise ValueError(
                    f"{self.values.nbytes / 2**30:.1f} GiB of host memory could not be pinned ({status}); free some "
                    "host memory, or raise the memory limit of the container"
                )
            weakref.finalize(
                self, _unpin, self.values, device
            ).atexit = False  # a process that ends has no need of it


def _unpin(values: Tensor, device: torch.device) -> None:
    torch.cuda.synchronize(device)  # no copy may be under way
    torch.cuda.cudart().cudaHostUnregister(values.data_ptr())


def available_bytes(root: Path = Path("/")) -> int | None:
    """Host memory that this process can still allocate; None where the system does not say (not Linux)."""
    available = _field(root / "proc/meminfo", "MemAvailable:")
    if available is None:
        return None
    found = [available * 1024]
    for folder, limit, usage in CGROUPS:
        place = root / "sys/fs/cgroup" / folder
        if (place / limit).exists() and (most := (place / limit).read_text().strip()) != "max":
            cache = (
                _field(place / "memory.stat", "inactive_file") or 0
            )  # counts as used, but is given back on demand
            found.append(int(most) - int((place / usage).read_text()) + cache)
    return min(found)


def _field(file: Path, name: str) -> int | None:
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return next((int(words[1]) for words in lines if words and words[0] == name), None)
