"""One new token of every row against its pages, on a CPU in float32: `paged_cpu.c`, compiled when first needed.

SDPA wants all rows at one length: pages would have to be gathered and padded in every layer of every step. The kernel
reads them where they lie. It needs a C compiler, once: the result is kept in the user's cache, for all processors of
this kind. Without a compiler, and for other kinds of numbers, attention goes through `models.paged_sdpa`.

Axes: B rows, H query heads, K key/value heads, D head size, P pages of a row.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ascent.models.attention import Call
from ascent.models.paged import Pool

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = ("-O3", "-fPIC", "-shared")
COMPILERS = ("cc", "gcc", "clang")
FIX = "install a C compiler (gcc or clang), or name one in the environment variable CC"
LARGE = 2_000_000  # numbers read: from here on it pays to wake other threads
PIECES = 4  # of work for each thread, because rows differ in length

logger = logging.getLogger("ascent.models")


class _Call(ctypes.Structure):
    """`Call` of paged_cpu.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("queries", "new_keys", "new_values", "keys", "values", "out")),
        *((name, ctypes.c_void_p) for name in ("table", "lengths")),
        *((name, ctypes.c_int64) for name in ("query_row", "query_head", "key_row", "key_head")),
        *((name, ctypes.c_int64) for name in ("value_row", "value_head", "table_row")),
        *((name, ctypes.c_int32) for name in ("heads", "kv_heads", "key_size", "value_size", "page", "window")),
        *((name, ctypes.c_float) for name in ("scaling", "softcap")),
    ]


@dataclass(frozen=True)
class CompiledDecode:
    """The context of a step. `lengths_B` counts what a row sees, the new token included; 0: the row stands still.

    New tokens are stored where the table says.
    """

    pool: Pool
    table_BP: Tensor  # int32
    lengths_B: Tensor  # int32
    seen: int  # the sum of the lengths

    @property
    def total(self) -> int:
        return self.lengths_B.shape[0]

    def attend(self, q_BHD: Tensor, k_BKD: Tensor, v_BKD: Tensor, call: Call) -> Tensor:
        kernel = compiled()
        assert kernel is not None
        q_BHD, k_BKD, v_BKD = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BHD, k_BKD, v_BKD))
        rows, heads, _ = q_BHD.shape
        kv_heads, key_size, value_size = call.heads
        out_BHD = q_BHD.new_empty(rows, heads, value_size)
        tensors = q_BHD, k_BKD, v_BKD, self.pool.keys[call.layer], self.pool.values[call.layer], out_BHD
        asked = _Call(
            *(each.data_ptr() for each in (*tensors, self.table_BP, self.lengths_B)),
            *(stride for each in (q_BHD, k_BKD, v_BKD) for stride in each.stride()[:2]), self.table_BP.stride(0),
            heads, kv_heads, key_size, value_size, self.pool.page, call.window or 0, call.scaling, call.softcap or 0.0,
        )  # fmt: skip
        _run(kernel, asked, rows, self.seen * heads * (key_size + value_size))
        return out_BHD


def _run(kernel: Any, asked: _Call, rows: int, work: int) -> None:
    """Rows are independent: who computes them changes nothing."""
    threads = torch.get_num_threads()
    if work < LARGE or threads == 1:
        failed = kernel(ctypes.byref(asked), 0, rows)
    else:
        step = max(1, rows // (PIECES * threads))
        starts = range(0, rows, step)
        failed = any(_threads(threads).map(lambda at: kernel(ctypes.byref(asked), at, min(at + step, rows)), starts))
    if failed:
        raise MemoryError(f"no memory for the attention scores of {rows} rows; run fewer rows or shorter sequences")


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "attention")


@functools.cache
def compiled() -> Callable[..., int] | None:
    """The kernel; None where it cannot be had, which is said once."""
    try:
        return load()
    except NotCompiled as error:
        logger.warning("sampling on this CPU goes without its compiled attention and takes longer: %s; %s", error, FIX)
        return None


class NotCompiled(Exception):
    """There is no kernel on this machine; says why."""


def load() -> Callable[..., int]:
    try:
        with tempfile.TemporaryDirectory() as folder:
            kernel = ctypes.CDLL(str(_built(Path(folder)))).attend
    except subprocess.CalledProcessError as error:
        raise NotCompiled(f"{error.cmd[0]} failed: {error.stderr.strip()}") from error
    except OSError as error:
        raise NotCompiled(str(error)) from error
    kernel.argtypes = [ctypes.POINTER(_Call), ctypes.c_int32, ctypes.c_int32]
    return kernel


def _built(folder: Path) -> Path:
    """The compiled file: from the cache, or made in `folder` and put there if it can be written to."""
    text = SOURCE.read_bytes() + " ".join((*FLAGS, platform.system(), platform.machine())).encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ascent"
    kept = cache / f"paged_cpu-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if kept.exists():
        return kept
    names = [os.environ["CC"]] if os.environ.get("CC") else COMPILERS
    compiler = next((found for name in names if (found := shutil.which(name))), None)
    if compiler is None:
        raise FileNotFoundError(f"no C compiler was found ({', '.join(names)})")
    new = folder / kept.name
    command = [compiler, *FLAGS, "-o", str(new), str(SOURCE), "-lm"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        beside = Path(shutil.copy(new, cache / f"{kept.name}.{os.getpid()}"))
        return beside.replace(kept)  # at once: others may be doing the same
    except OSError:
        return new
