"""CUDA buffers whose addresses stay while their memory comes and goes.

A KV cache is needed while sampling, activations and gradients while updating. CUDA graphs hold addresses, so freeing a
cache would lose them. Here addresses are reserved once, for the largest cache; memory is mapped to them as blocks are
used, and unmapped when nothing runs. These are calls of the CUDA driver, through ctypes: torch offers none of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint64, c_ushort, c_void_p
from typing import Any

import torch
from torch import Tensor

PINNED, DEVICE, READ_WRITE = 1, 1, 3  # of the driver's enumerations
MIN_GROWTH = 16  # at least a sixteenth of the whole is mapped at a time: a call takes about 0.1 ms


class _Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class _Properties(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("compression", c_ubyte),
        ("rdma", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", c_int)]


class ElasticBuffers:
    """One buffer of `rows` rows for each of `row_bytes`; `grow` maps the first rows of all of them."""

    def __init__(self, rows: int, row_bytes: Sequence[int], device: torch.device) -> None:
        self.rows, self.mapped_rows, self.mapped_bytes = rows, 0, 0
        self._row_bytes, self._device = tuple(row_bytes), device
        self._cuda = ctypes.CDLL("libcuda.so.1")
        torch.zeros(1, device=device)  # creates the context that driver calls need
        location = _Location(DEVICE, device.index or 0)
        self._properties = _Properties(PINNED, 0, location)
        self._access = _Access(location, READ_WRITE)
        step = c_size_t()
        self._call("cuMemGetAllocationGranularity", byref(step), byref(self._properties), 0)
        self._step = step.value
        self._addresses = [self._reserve(self._rounded(rows * each)) for each in row_bytes]
        self._mapped = [0] * len(row_bytes)  # bytes of each buffer
        self._pieces: list[tuple[int, int, c_uint64]] = []  # address, bytes, handle
        self.grow(1)

    def tensor(self, index: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A buffer as a tensor. Only rows that are mapped may be read or written."""
        count = self.rows * self._row_bytes[index]
        interface = {
            "shape": (count,),
            "typestr": "|u1",
            "data": (self._addresses[index], False),
            "version": 3,
        }
        holder = type("Buffer", (), {"__cuda_array_interface__": interface, "owner": self})()
        return torch.as_tensor(holder, device=self._device).view(dtype).view(*shape)

    def grow(self, rows: int) -> None:
        """Map at least the first `rows` rows of every buffer."""
        if rows <= self.mapped_rows:
            return
        rows = min(self.rows, max(rows, self.mapped_rows + self.rows // MIN_GROWTH))
        for index, each in enumerate(self._row_bytes):
            size = self._rounded(rows * each) - self._mapped[index]
            if size > 0:
                self._map(self._addresses[index] + self._mapped[index], size)
                self._mapped[index] += size
        self.mapped_rows = rows

    def shrink(self) -> None:
        """Give all memory back. What the buffers held is lost."""
        torch.cuda.synchronize(self._device)
        for address, size, handle in self._pieces:
            self._call("cuMemUnmap", c_uint64(address), c_size_t(size))
            self._call("cuMemRelease", handle)
        self._pieces.clear()
        self._mapped = [0] * len(self._mapped)
        self.mapped_rows = self.mapped_bytes = 0

    def close(self) -> None:
        self.shrink()
        for address, each in zip(self._addresses, self._row_bytes, strict=True):
            self._call(
                "cuMemAddressFree", c_uint64(address), c_size_t(self._rounded(self.rows * each))
            )
        self._addresses.clear()
        self._row_bytes = ()

    def __del__(self) -> None:
        if getattr(self, "_addresses", None):
            with suppress(Exception):  # at the end of a process CUDA may be gone already
                self.close()

    def _rounded(self, size: int) -> int:
        return -(-size // self._step) * self._step

    def _reserve(self, size: int) -> int:
        address = c_uint64()
        self._call(
            "cuMemAddressReserve",
            byref(address),
            c_size_t(size),
            c_size_t(0),
            c_uint64(0),
            c_uint64(0),
        )
        return address.value

    def _map(self, address: int, size: int) -> None:
        handle = c_uint64()
        create = (byref(handle), c_size_t(size), byref(self._properties), c_uint64(0))
        if self._cuda.cuMemCreate(*create):  # torch may hold memory that it does not use
            torch.cuda.empty_cache()
            self._call("cuMemCreate", *create)
        self._call("cuMemMap", c_uint64(address), c_size_t(size), c_size_t(0), handle, c_uint64(0))
        self._call(
            "cuMemSetAccess", c_uint64(address), c_size_t(size), byref(self._access), c_size_t(1)
        )
        self._pieces.append((address, size, handle))
        self.mapped_bytes += size

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._cuda, name)(*arguments)
        if status:
            free = torch.cuda.mem_get_info(self._device)[0] / 2**30
            raise torch.OutOfMemoryError(
                f"{name} failed with status {status} while the KV cache held {self.mapped_bytes / 2**30:.1f} GiB and "
                f"{free:.1f} GiB were free; sample fewer or shorter completions at once, or free some memory"
            )
