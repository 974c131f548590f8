"""Attention while sampling: keys and values live in a pool of pages; new tokens are written to it and read it back.

`Prefill` runs whole prompts packed, exactly as in training, and also stores their keys and values. `Decode` runs one
new token of every running row against all that its row has stored: here on CUDA; on a CPU it is in `paged_cpu`, or in
`paged_sdpa` where no C compiler is at hand or numbers are not float32. What a row gets never depends on its neighbours.
A row's pages need not lie together: its table names them. Page 0 belongs to nobody: rows that only fill a batch up
write there.

Axes: T new tokens, B rows, H query heads, K key/value heads, D head size, S slots of the pool (pages x page size), P
pages of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ascent.models.attention import Call, Packed


@dataclass(frozen=True)
class KVCache:
    """Keys and values of every layer. `page` tokens lie together; slot s of page p is number p * page + s."""

    keys: tuple[Tensor, ...]  # per layer (S, K, D)
    values: tuple[Tensor, ...]
    page: int

    def write(self, layer: int, slots_T: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> None:
        self.keys[layer].index_copy_(0, slots_T, k_TKD)
        self.values[layer].index_copy_(0, slots_T, v_TKD)

    def copy_pages(self, sources: list[int], targets: list[int]) -> None:
        """Whole pages, in every layer. No page may be source and target."""
        sources_N, targets_N = (torch.tensor(each, device=self.keys[0].device) for each in (sources, targets))
        for store in (*self.keys, *self.values):
            pages = store.view(-1, self.page, *store.shape[1:])
            pages.index_copy_(0, targets_N, pages.index_select(0, sources_N))

    @property
    def bytes(self) -> int:
        return sum(store.numel() * store.element_size() for store in (*self.keys, *self.values))


def allocate(
    layers: list[tuple[int, int, int]], pages: int, page: int, *, dtype: torch.dtype, device: torch.device
) -> KVCache:
    """A pool of zeros. `layers` holds, for each layer, key/value heads, size of a key, size of a value."""
    slots = pages * page
    keys = tuple(torch.zeros(slots, heads, size, dtype=dtype, device=device) for heads, size, _ in layers)
    values = tuple(torch.zeros(slots, heads, size, dtype=dtype, device=device) for heads, _, size in layers)
    return KVCache(keys, values, page)


@dataclass(frozen=True)
class Prefill:
    """Packed prompts, stored as they are read. `slots_T` says where each token goes."""

    packed: Packed
    pool: KVCache
    slots_T: Tensor

    @property
    def total(self) -> int:
        return self.packed.total

    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, call: Call) -> Tensor:
        self.pool.write(call.layer, self.slots_T, k_TKD, v_TKD)
        return self.packed.attend(q_THD, k_TKD, v_TKD, call)


@dataclass(frozen=True)
class Decode:
    """One new token a row. `lengths_B` counts what a row sees, the new token included."""

    pool: KVCache
    slots_B: Tensor  # where the new token goes
    lengths_B: Tensor  # int32
    table_BP: Tensor  # int32: the pages of every row, in order
    splits: int = 1  # pieces into which a row's past is cut

    @property
    def total(self) -> int:
        return self.slots_B.shape[0]

    def attend(self, q_BHD: Tensor, k_BKD: Tensor, v_BKD: Tensor, call: Call) -> Tensor:
        self.pool.write(call.layer, self.slots_B, k_BKD, v_BKD)
        from ascent.models.paged_attention_cuda import paged_attention  # triton exists on CUDA machines alone

        return paged_attention(
            q_BHD.contiguous(), self.pool.keys[call.layer], self.pool.values[call.layer], self.table_BP, self.lengths_B,
            page=self.pool.page, splits=self.splits, scaling=call.scaling, window=call.window, softcap=call.softcap,
            sinks_H=call.sinks_H,
        )  # fmt: skip


def new_slots(table_BP: Tensor, stored_B: Tensor, page: int) -> Tensor:
    """Where the next token of every row goes, by how many it has stored."""
    places_B = stored_B.long()
    pages_B = table_BP.gather(1, (places_B // page)[:, None])[:, 0].long()
    return pages_B * page + places_B % page
