"""Decode attention on a CPU through SDPA, where `paged_attention_cpu` cannot be used.

Rows of similar length run together, their blocks gathered and padded to a length that depends on the row's own only:
padding to a neighbor's length would change bits on some processors, even though it is masked.

Axes: B rows, H query heads, K key/value heads, R query heads per key/value head, D head size, P blocks of a row, N rows
of a group, L the padded length of a group.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ascent.models.attention import AttentionCall, with_sink
from ascent.models.paged_attention import KVCache, slot_mapping

LENGTH_STEP = (
    16  # tokens: lengths are rounded up to a multiple of this, or of a quarter of their own size
)


@dataclass(frozen=True)
class LengthGroup:
    """Rows that are padded to the same L and run together; positions beyond a row's length are masked."""

    rows_N: Tensor
    slots_X: Tensor  # N x L, flat; beyond a row's length in its last block or in block 0
    lengths_N: Tensor
    length: int
    masks: dict[int | None, Tensor] = field(
        default_factory=dict
    )  # per window: 0 where visible, -inf elsewhere

    def attend(self, q_NHD: Tensor, kv_cache: KVCache, call: AttentionCall) -> Tensor:
        heads, _, size = call.heads
        # The R query heads of a key/value head are rows of one product: keys are not repeated.
        count, query_heads, _ = q_NHD.shape
        q_NKRD = q_NHD.view(count, heads, query_heads // heads, -1)
        k_NKLD, v_NKLD = (
            store.index_select(0, self.slots_X)
            .view(count, self.length, *store.shape[1:])
            .transpose(1, 2)
            for store in (kv_cache.keys[call.layer], kv_cache.values[call.layer])
        )
        mask_N11L = self._mask(call.window, q_NHD.dtype)
        if call.sinks_H is not None:
            sinks_KR1 = call.sinks_H.view(heads, -1, 1) / call.scaling
            q_NKRD, k_NKLD, v_NKLD = with_sink(q_NKRD, k_NKLD, v_NKLD, sinks_KR1)
            mask_N11L = F.pad(mask_N11L, (0, 1))
        if call.softcap is None:
            out_NKRD = F.scaled_dot_product_attention(
                q_NKRD, k_NKLD, v_NKLD, attn_mask=mask_N11L, scale=call.scaling
            )
        else:
            scores_NKRL = (q_NKRD @ k_NKLD.mT) * call.scaling
            scores_NKRL = (scores_NKRL / call.softcap).tanh() * call.softcap + mask_N11L
            out_NKRD = scores_NKRL.float().softmax(-1).to(q_NHD.dtype) @ v_NKLD
        return out_NKRD.reshape(count, query_heads, size)

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        if window not in self.masks:
            positions_L = torch.arange(self.length)
            visible_NL = positions_L < self.lengths_N[:, None]
            if window is not None:
                visible_NL &= positions_L >= self.lengths_N[:, None] - window
            mask_NL = torch.zeros(visible_NL.shape, dtype=dtype).masked_fill_(
                ~visible_NL, -torch.inf
            )
            self.masks[window] = mask_NL[:, None, None, :]
        return self.masks[window]


@dataclass(frozen=True)
class SdpaDecode:
    """One new token per row, stored at `slots_B`."""

    kv_cache: KVCache
    slots_B: Tensor
    groups: tuple[LengthGroup, ...]

    @property
    def total(self) -> int:
        return self.slots_B.shape[0]

    def attend(self, q_BHD: Tensor, k_BKD: Tensor, v_BKD: Tensor, call: AttentionCall) -> Tensor:
        self.kv_cache.write(call.layer, self.slots_B, k_BKD, v_BKD)
        if len(self.groups) == 1:
            return self.groups[0].attend(q_BHD, self.kv_cache, call)
        out_BHD = q_BHD.new_empty(*q_BHD.shape[:2], v_BKD.shape[-1])
        for group in self.groups:
            out_BHD[group.rows_N] = group.attend(q_BHD[group.rows_N], self.kv_cache, call)
        return out_BHD


def sdpa_decode(kv_cache: KVCache, block_table_BP: Tensor, lengths_B: Tensor) -> SdpaDecode:
    """`lengths_B` includes the new token; 0: the row is done, so it writes to block 0 and reads one token there."""
    block_table_BP = block_table_BP * (lengths_B > 0)[:, None]
    lengths_B = lengths_B.clamp(min=1)
    slots_B = slot_mapping(block_table_BP, lengths_B - 1, kv_cache.block_size)
    rows_by_length: dict[int, list[int]] = {}
    for row, length in enumerate(lengths_B.tolist()):
        rows_by_length.setdefault(padded_length(length), []).append(row)
    groups = []
    for length, rows in rows_by_length.items():
        rows_N = torch.tensor(rows)
        num_blocks = -(-length // kv_cache.block_size)
        block_table_NP = block_table_BP[rows_N, :num_blocks]
        if block_table_NP.shape[1] < num_blocks:  # the table ends before the padded length does
            block_table_NP = F.pad(block_table_NP, (0, num_blocks - block_table_NP.shape[1]))
        slots_NPX = block_table_NP.long()[:, :, None] * kv_cache.block_size + torch.arange(
            kv_cache.block_size
        )
        groups.append(
            LengthGroup(
                rows_N, slots_NPX.flatten(1)[:, :length].flatten(), lengths_B[rows_N], length
            )
        )
    return SdpaDecode(kv_cache, slots_B, tuple(groups))


def padded_length(length: int) -> int:
    """A row's length, rounded up: four steps per doubling."""
    step = (
        max(LENGTH_STEP, 2 ** ((length - 1).bit_length() - 3))
        if length > LENGTH_STEP
        else LENGTH_STEP
    )
    return -(-length // step) * step
