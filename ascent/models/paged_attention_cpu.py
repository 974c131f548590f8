"""Decode attention on a CPU in float32, by `attend` of c_extension.c.

SDPA needs all rows at one length, so blocks would have to be gathered and padded in every layer of every step. Here
they are read in place. Without a C compiler, and in other precisions, `paged_attention_sdpa` is used.

Axes: B rows, H query heads, K key/value heads, D head size, P blocks of a row.
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
from ascent.models.attention import AttentionCall
from ascent.models.paged_attention import KVCache

PARALLEL_THRESHOLD = 2_000_000  # floats read: from here on threads pay off
CHUNKS_PER_THREAD = 4  # because rows differ in length


class _Arguments(ctypes.Structure):
    """The struct `Arguments` of c_extension.c."""

    _fields_ = [
        *(
            (name, ctypes.c_void_p)
            for name in ("queries", "new_keys", "new_values", "keys", "values", "out")
        ),
        *((name, ctypes.c_void_p) for name in ("block_table", "lengths", "sinks")),
        *((name, ctypes.c_int64) for name in ("query_row", "query_head", "key_row", "key_head")),
        *((name, ctypes.c_int64) for name in ("value_row", "value_head", "block_table_row")),
        *(
            (name, ctypes.c_int32)
            for name in ("heads", "kv_heads", "key_size", "value_size", "block_size", "window")
        ),
        *((name, ctypes.c_float) for name in ("scaling", "softcap")),
    ]


@dataclass(frozen=True)
class CompiledDecode:
    """One new token per row. `lengths_B` includes the new token; 0: the row is padding or done.

    All new tokens are stored before any is read, so the tokens of a short prompt can run as rows of one step.
    """

    kv_cache: KVCache
    block_table_BP: Tensor  # int32
    lengths_B: Tensor  # int32
    total_len: int  # sum of the lengths

    @property
    def total(self) -> int:
        return self.lengths_B.shape[0]

    def attend(self, q_BHD: Tensor, k_BKD: Tensor, v_BKD: Tensor, call: AttentionCall) -> Tensor:
        functions = library()
        assert functions is not None
        assert self.block_table_BP.dtype == self.lengths_B.dtype == torch.int32
        sinks = () if call.sinks_H is None else (call.sinks_H,)
        tensors = (q_BHD, k_BKD, v_BKD, *self.kv_cache.keys[:1], *sinks)
        if wrong := [each.dtype for each in tensors if each.dtype != torch.float32]:
            raise ValueError(
                f"{wrong[0]} in compiled attention, which takes float32; sample outside of autocast, or load the "
                "model in the precision that it runs in"
            )
        q_BHD, k_BKD, v_BKD = (
            x if x.stride(-1) == 1 else x.contiguous() for x in (q_BHD, k_BKD, v_BKD)
        )
        rows, heads, _ = q_BHD.shape
        kv_heads, key_size, value_size = call.heads
        out_BHD = q_BHD.new_empty(rows, heads, value_size)
        keys, values = self.kv_cache.keys[call.layer], self.kv_cache.values[call.layer]
        arguments = _Arguments(
            *(each.data_ptr() for each in (q_BHD, k_BKD, v_BKD, keys, values, out_BHD)),
            self.block_table_BP.data_ptr(),
            self.lengths_B.data_ptr(),
            None if call.sinks_H is None else call.sinks_H.data_ptr(),
            *(stride for each in (q_BHD, k_BKD, v_BKD) for stride in each.stride()[:2]),
            self.block_table_BP.stride(0),
            heads,
            kv_heads,
            key_size,
            value_size,
            self.kv_cache.block_size,
            call.window or 0,
            call.scaling,
            call.softcap or 0.0,
        )
        functions.store_kv(ctypes.byref(arguments), rows)
        _run(functions.attend, arguments, rows, self.total_len * heads * (key_size + value_size))
        return out_BHD


def _run(kernel: Any, arguments: _Arguments, rows: int, num_floats: int) -> None:
    """Rows are independent, so threads do not change the result."""
    threads = torch.get_num_threads()
    if num_floats < PARALLEL_THRESHOLD or threads == 1:
        failed = kernel(ctypes.byref(arguments), 0, rows)
    else:
        step = max(1, rows // (CHUNKS_PER_THREAD * threads))
        futures: list[Future[int]] = []
        try:
            for start in range(0, rows, step):
                futures.append(
                    _thread_pool(threads).submit(
                        kernel, ctypes.byref(arguments), start, min(start + step, rows)
                    )
                )
            failed = any([each.result() for each in futures])
        finally:
            wait(futures)  # after an interrupt too: the threads use memory that is freed then
    if failed:
        raise MemoryError(
            f"no memory for the attention scores of {rows} rows; run fewer rows or shorter sequences"
        )


@functools.cache
def _thread_pool(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "attention")
