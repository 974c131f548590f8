"""One new token of every row against its pages through SDPA, on a CPU: where `paged_cpu` cannot be had.

Rows of similar length run together, their pages gathered and padded to a length that follows from a row's own: padding
to that of a neighbour would change bits on some processors, even though it is masked.

Axes: B rows, H query heads, K key/value heads, R query heads per key/value head, D head size, P pages of a row, N rows
of a block, L the rounded length of a block.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ascent.models.attention import Call, with_sink
from ascent.models.paged_attention import KVCache, new_slots

STEP = 16  # tokens: lengths are rounded up to a multiple of this, or of a quarter of their own size


@dataclass(frozen=True)
class Block:
    """Rows that are padded to the same L and run at once; what lies beyond a row's length is masked."""

    rows_N: Tensor
    slots_X: Tensor  # N x L slots, flat; beyond a row's length they point at its last page or at page 0
    lengths_N: Tensor
    length: int
    masks: dict[int | None, Tensor] = field(default_factory=dict)  # per window: 0 where seen, -inf elsewhere

    def attend(self, q_NHD: Tensor, pool: KVCache, call: Call) -> Tensor:
        heads, _, size = call.heads
        # The R query heads that share a key/value head are rows of one product: nothing is repeated.
        count, together, _ = q_NHD.shape
        q_NKRD = q_NHD.view(count, heads, together // heads, -1)
        k_NKLD, v_NKLD = (
            store.index_select(0, self.slots_X).view(count, self.length, *store.shape[1:]).transpose(1, 2)
            for store in (pool.keys[call.layer], pool.values[call.layer])
        )
        mask_N11L = self._mask(call.window, q_NHD.dtype)
        if call.sinks_H is not None:
            sinks_KR1 = call.sinks_H.view(heads, -1, 1) / call.scaling
            q_NKRD, k_NKLD, v_NKLD = with_sink(q_NKRD, k_NKLD, v_NKLD, sinks_KR1)
            mask_N11L = F.pad(mask_N11L, (0, 1))
        if call.softcap is None:
            out_NKRD = F.scaled_dot_product_attention(q_NKRD, k_NKLD, v_NKLD, attn_mask=mask_N11L, scale=call.scaling)
        else:
            scores_NKRL = (q_NKRD @ k_NKLD.mT) * call.scaling
            scores_NKRL = (scores_NKRL / call.softcap).tanh() * call.softcap + mask_N11L
            out_NKRD = scores_NKRL.float().softmax(-1).to(q_NHD.dtype) @ v_NKLD
        return out_NKRD.reshape(count, together, size)

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        if window not in self.masks:
            places_L = torch.arange(self.length)
            seen_NL = places_L < self.lengths_N[:, None]
            if window is not None:
                seen_NL &= places_L >= self.lengths_N[:, None] - window
            mask_NL = torch.zeros(seen_NL.shape, dtype=dtype).masked_fill_(~seen_NL, -torch.inf)
            self.masks[window] = mask_NL[:, None, None, :]
        return self.masks[window]


@dataclass(frozen=True)
class BlockDecode:
    """The context of a step: `slots_B` says where the new tokens go."""

    pool: KVCache
    slots_B: Tensor
    blocks: tuple[Block, ...]

    @property
    def total(self) -> int:
        return self.slots_B.shape[0]

    def attend(self, q_BHD: Tensor, k_BKD: Tensor, v_BKD: Tensor, call: Call) -> Tensor:
        self.pool.write(call.layer, self.slots_B, k_BKD, v_BKD)
        if len(self.blocks) == 1:
            return self.blocks[0].attend(q_BHD, self.pool, call)
        out_BHD = q_BHD.new_empty(*q_BHD.shape[:2], v_BKD.shape[-1])
        for block in self.blocks:
            out_BHD[block.rows_N] = block.attend(q_BHD[block.rows_N], self.pool, call)
        return out_BHD


def by_block(pool: KVCache, table_BP: Tensor, lengths_B: Tensor) -> BlockDecode:
    """The context of one step. `lengths_B` counts what a row sees, its new token included; 0: it stands still.

    A row that stands still writes to page 0 and reads one token there.
    """
    table_BP = table_BP * (lengths_B > 0)[:, None]
    lengths_B = lengths_B.clamp(min=1)
    slots_B = new_slots(table_BP, lengths_B - 1, pool.page)
    groups: dict[int, list[int]] = {}
    for row, length in enumerate(lengths_B.tolist()):
        groups.setdefault(rounded(length), []).append(row)
    blocks = []
    for length, rows in groups.items():
        rows_N = torch.tensor(rows)
        pages = -(-length // pool.page)
        table_NP = table_BP[rows_N, :pages]
        if table_NP.shape[1] < pages:  # the table ends before the rounded length does: page 0 is masked anyway
            table_NP = F.pad(table_NP, (0, pages - table_NP.shape[1]))
        slots_NX = (table_NP.long()[:, :, None] * pool.page + torch.arange(pool.page)).flatten(1)[:, :length]
        blocks.append(Block(rows_N, slots_NX.flatten(), lengths_B[rows_N], length))
    return BlockDecode(pool, slots_B, tuple(blocks))


def rounded(length: int) -> int:
    """A row's length, rounded up: four steps to each doubling."""
    step = max(STEP, 2 ** ((length - 1).bit_length() - 3)) if length > STEP else STEP
    return -(-length // step) * step
