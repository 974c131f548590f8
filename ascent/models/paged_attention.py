"""Attention over a paged KV cache, for sampling.

`Prefill` runs packed prompts exactly as in training and also stores their keys and values. `CudaDecode` runs one new
token per row against the row's cached tokens; on a CPU that is `CompiledDecode`, or `SdpaDecode` without a C compiler
or in other precisions than float32. A row's result never depends on the other rows. A row's blocks need not be
adjacent: the block table lists them. Block 0 is scratch: padding rows write there.

Axes: T new tokens, B rows, H query heads, K key/value heads, D head size, S slots of the KV cache (blocks x block
size), P blocks of a row, G groups of rows, M members of a group.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ascent.models.attention import AttentionCall, PackedContext
from ascent.models.elastic_memory import ElasticBuffers
from ascent.models.prefix_groups import PrefixGroups


@dataclass(frozen=True)
class KVCache:
    """Keys and values of every layer. Slot s of block b is row b * block_size + s.

    With `memory` only the first blocks have memory, as many as `grow` was last asked for. Tensors are not printed: to
    read a block without memory ends every later use of CUDA in the process.
    """

    keys: tuple[Tensor, ...] = field(repr=False)  # per layer (S, K, D)
    values: tuple[Tensor, ...] = field(repr=False)
    block_size: int
    memory: ElasticBuffers | None = None

    def grow(self, num_blocks: int) -> None:
        if self.memory is not None:
            self.memory.grow(num_blocks * self.block_size)

    def shrink(self) -> None:
        """Give back what memory can be given back; nothing is cached afterwards."""
        if self.memory is not None:
            self.memory.shrink()

    def write(self, layer: int, slots_T: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> None:
        if slots_T.is_cuda:
            from ascent.models.paged_attention_cuda import (
                write_kv,
            )  # triton exists on CUDA machines only

            return write_kv(self.keys[layer], self.values[layer], slots_T, k_TKD, v_TKD)
        self.keys[layer].index_copy_(0, slots_T, k_TKD)
        self.values[layer].index_copy_(0, slots_T, v_TKD)

    def copy_blocks(self, sources: list[int], targets: list[int]) -> None:
        """In every layer. No block may be both source and target."""
        sources_N, targets_N = (
            torch.tensor(each, device=self.keys[0].device) for each in (sources, targets)
        )
        for store in (*self.keys, *self.values):
            blocks = store.view(-1, self.block_size, *store.shape[1:])
            blocks.index_copy_(0, targets_N, blocks.index_select(0, sources_N))

    @property
    def bytes(self) -> int:
        if self.memory is not None:
            return self.memory.mapped_bytes
        return sum(store.numel() * store.element_size() for store in (*self.keys, *self.values))


def allocate_kv_cache(
    layers: list[tuple[int, int, int]],
    num_blocks: int,
    block_size: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> KVCache:
    """An empty KV cache. `layers` holds each layer's key/value heads, key size and value size.

    On CUDA it takes addresses for all blocks, and memory for those that are used.
    """
    slots = num_blocks * block_size
    if device.type == "cuda" and torch.version.hip is None:
        shapes = [(slots, heads, size) for heads, *sizes in layers for size in sizes]
        memory = ElasticBuffers(
            slots, [heads * size * dtype.itemsize for _, heads, size in shapes], device
        )
        stores = [memory.tensor(index, shape, dtype) for index, shape in enumerate(shapes)]
        return KVCache(tuple(stores[::2]), tuple(stores[1::2]), block_size, memory)
    keys = tuple(
        torch.zeros(slots, heads, size, dtype=dtype, device=device) for heads, size, _ in layers
    )
    values = tuple(
        torch.zeros(slots, heads, size, dtype=dtype, device=device) for heads, _, size in layers
    )
    return KVCache(keys, values, block_size)


@dataclass(frozen=True)
class Prefill:
    """Packed prompts, stored in the KV cache at `slots_T`."""

    packed: PackedContext
    kv_cache: KVCache
    slots_T: Tensor

    @property
    def total(self) -> int:
        return self.packed.total

    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, call: AttentionCall) -> Tensor:
        self.kv_cache.write(call.layer, self.slots_T, k_TKD, v_TKD)
        return self.packed.attend(q_THD, k_TKD, v_TKD, call)


@dataclass(frozen=True)
class CudaDecode:
    """One new token per row on CUDA. `lengths_B` includes the new token."""

    kv_cache: KVCache
    slots_B: Tensor  # of the new tokens
    lengths_B: Tensor  # int32
    block_table_BP: Tensor  # int32
    splits: int = 1  # programs that share a row
    prefixes: PrefixGroups | None = None

    @property
    def total(self) -> int:
        return self.slots_B.shape[0]

    def attend(self, q_BHD: Tensor, k_BKD: Tensor, v_BKD: Tensor, call: AttentionCall) -> Tensor:
        if call.exact:
            from ascent.models.exact_decode_cuda import decode_attention

            return decode_attention(
                q_BHD.contiguous(),
                self.kv_cache.keys[call.layer],
                self.kv_cache.values[call.layer],
                self.block_table_BP,
                self.lengths_B,
                new_k_BKD=k_BKD,
                new_v_BKD=v_BKD,
                slots_B=self.slots_B,
                block_size=self.kv_cache.block_size,
                splits=self.splits // 2,
                scaling=call.scaling,
                prefixes=self.prefixes,
            )
        from ascent.models.paged_attention_cuda import paged_attention

        return paged_attention(
            q_BHD.contiguous(),
            self.kv_cache.keys[call.layer],
            self.kv_cache.values[call.layer],
            self.block_table_BP,
            self.lengths_B,
            new_k_BKD=k_BKD,
            new_v_BKD=v_BKD,
            slots_B=self.slots_B,
            block_size=self.kv_cache.block_size,
            splits=self.splits,
            scaling=call.scaling,
            window=call.window,
            softcap=call.softcap,
            sinks_H=call.sinks_H,
            prefixes=self.prefixes,
        )


def slot_mapping(block_table_BP: Tensor, stored_B: Tensor, block_size: int) -> Tensor:
    """The slot of the next token of every row that has `stored_B` tokens in the cache."""
    positions_B = stored_B.long()
    blocks_B = block_table_BP.gather(1, (positions_B // block_size)[:, None])[:, 0].long()
    return blocks_B * block_size + positions_B % block_size
