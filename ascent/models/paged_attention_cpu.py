"""One new token of every row against its pages, on a CPU in float32, by `attend` of c_extension.c.

SDPA wants all rows at one length: pages would have to be gathered and padded in every layer of every step. Here they
are read where they lie. Without a C compiler, and for other kinds of numbers, there is `models.paged_sdpa`.

Axes: B rows, H query heads, K key/value heads, D head size, P pages of a row.
"""

from __future__ import annotations

import ctypes
import functools
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ascent.c_extension import library
from ascent.models.attention import Call
from ascent.models.paged_attention import KVCache

LARGE = 2_000_000  # numbers read: from here on it pays to wake other threads
PIECES = 4  # of work for each thread, because rows differ in length


class _Call(ctypes.Structure):
    """`Call` of c_extension.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("queries", "new_keys", "new_values", "keys", "values", "out")),
        *((name, ctypes.c_void_p) for name in ("table", "lengths", "sinks")),
        *((name, ctypes.c_int64) for name in ("query_row", "query_head", "key_row", "key_head")),
        *((name, ctypes.c_int64) for name in ("value_row", "value_head", "table_row")),
        *((name, ctypes.c_int32) for name in ("heads", "kv_heads", "key_size", "value_size", "page", "window")),
        *((name, ctypes.c_float) for name in ("scaling", "softcap")),
    ]


@dataclass(frozen=True)
class CompiledDecode:
    """The context of a step. `lengths_B` counts what a row sees, the new token included; 0: the row stands still.

    New tokens are stored where the table says, all of them before any is read: the tokens of a short prompt can run as
    so many rows.
    """

    pool: KVCache
    table_BP: Tensor  # int32
    lengths_B: Tensor  # int32
    seen: int  # the sum of the lengths

    @property
    def total(self) -> int:
        return self.lengths_B.shape[0]

    def attend(self, q_BHD: Tensor, k_BKD: Tensor, v_BKD: Tensor, call: Call) -> Tensor:
        functions = library()
        assert functions is not None
        assert self.table_BP.dtype == self.lengths_B.dtype == torch.int32
        sinks = () if call.sinks_H is None else (call.sinks_H,)
        if wrong := [x.dtype for x in (q_BHD, k_BKD, v_BKD, *self.pool.keys[:1], *sinks) if x.dtype != torch.float32]:
            raise ValueError(
                f"{wrong[0]} in compiled attention, which takes float32; sample outside of autocast, or load the "
                "model in the precision that it shall run in"
            )
        q_BHD, k_BKD, v_BKD = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BHD, k_BKD, v_BKD))
        rows, heads, _ = q_BHD.shape
        kv_heads, key_size, value_size = call.heads
        out_BHD = q_BHD.new_empty(rows, heads, value_size)
        tensors = q_BHD, k_BKD, v_BKD, self.pool.keys[call.layer], self.pool.values[call.layer], out_BHD
        asked = _Call(
            *(each.data_ptr() for each in (*tensors, self.table_BP, self.lengths_B)),
            None if call.sinks_H is None else call.sinks_H.data_ptr(),
            *(stride for each in (q_BHD, k_BKD, v_BKD) for stride in each.stride()[:2]), self.table_BP.stride(0),
            heads, kv_heads, key_size, value_size, self.pool.page, call.window or 0, call.scaling, call.softcap or 0.0,
        )  # fmt: skip
        functions.store(ctypes.byref(asked), rows)
        _run(functions.attend, asked, rows, self.seen * heads * (key_size + value_size))
        return out_BHD


def _run(kernel: Any, asked: _Call, rows: int, numbers: int) -> None:
    """Rows are independent: who computes them changes nothing."""
    threads = torch.get_num_threads()
    if numbers < LARGE or threads == 1:
        failed = kernel(ctypes.byref(asked), 0, rows)
    else:
        step = max(1, rows // (PIECES * threads))
        work: list[Future[int]] = []
        try:
            for start in range(0, rows, step):
                work.append(_threads(threads).submit(kernel, ctypes.byref(asked), start, min(start + step, rows)))
            failed = any([each.result() for each in work])
        finally:
            wait(work)  # after an interrupt, too: they read and write memory that is given back then
    if failed:
        raise MemoryError(f"no memory for the attention scores of {rows} rows; run fewer rows or shorter sequences")


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "attention")
