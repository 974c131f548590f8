"""Attention while sampling: keys and values live in a pool of pages; new tokens are written to it and read it back.

`Prefill` runs whole prompts packed, exactly as in training, and also stores their keys and values. `Decode` runs one
new token of every running row against all that its row has stored. A row's pages need not lie together: its table
names them. Page 0 belongs to nobody: rows that only fill a batch up write there.

What a row gets never depends on its neighbours. On a CPU rows of similar length run together, padded to the longest of
them; what lies beyond a row's own end is masked, which changes no bit of its result (a test holds it). Where row after
row has page after page, all rows are read at once where they lie; otherwise their pages are gathered first.

Axes: T new tokens, B rows, H query heads, K key/value heads, R query heads per key/value head, D head size, S slots of
the pool (pages x page size), P pages of a row, N rows of a block, L the rounded length of a block.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from ascent.models.attention import Call, Packed

STEP = 16  # tokens: lengths are rounded up to a multiple of this, or of a quarter of their own size
WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # to copy numbers of any kind by their size
BLOCK_COST = 200_000  # numbers that could be gathered in the time that one more block takes


@dataclass(frozen=True)
class Pool:
    """Keys and values of every layer. `page` tokens lie together; slot s of page p is number p * page + s."""

    keys: tuple[Tensor, ...]  # per layer (S, K, D)
    values: tuple[Tensor, ...]
    page: int
    views: dict[tuple[int, int, int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)  # see `in_order`

    def write(self, layer: int, slots_T: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> None:
        self.keys[layer].index_copy_(0, slots_T, k_TKD)
        self.values[layer].index_copy_(0, slots_T, v_TKD)

    def copy_pages(self, sources: list[int], targets: list[int], tokens: int | None = None) -> None:
        """Whole pages, in every layer. No page may be source and target.

        With `tokens` (on a CPU), only that many of each page, and runs of pages at a time.
        """
        pairs = sorted(zip(sources, targets, strict=True))
        runs: list[list[int]] = []  # source, first target, the one behind the last
        for source, target in pairs if tokens is not None else ():
            if runs and runs[-1][0] == source and runs[-1][2] == target:
                runs[-1][2] += 1
            else:
                runs.append([source, target, target + 1])
        for store in (*self.keys, *self.values):
            pages = store.view(-1, self.page, *store.shape[1:])
            if tokens is None:
                pages[targets] = pages[sources]
                continue
            plain = pages.view(WORDS[store.element_size()]).numpy()  # a copy begins sooner there
            for source, start, end in runs:
                plain[start:end, :tokens] = plain[source, :tokens]

    def in_order(self, layer: int, rows: slice, length: int) -> tuple[Tensor, Tensor]:
        """The first `length` keys and values of these rows' own pages where they lie: each (rows, K, length, D)."""
        key = (layer, rows.start, rows.stop, length)
        if key not in self.views:
            stores = (store.view(-1, self.page, *store.shape[1:]) for store in (self.keys[layer], self.values[layer]))
            keys, values = (store[1 + rows.start : 1 + rows.stop, :length].transpose(1, 2) for store in stores)
            self.views[key] = keys, values
        return self.views[key]

    @property
    def width(self) -> int:
        """How many numbers a layer stores for a token."""
        return self.keys[0].shape[1] * (self.keys[0].shape[2] + self.values[0].shape[2])

    @property
    def pages(self) -> int:
        return self.keys[0].shape[0] // self.page

    @property
    def bytes(self) -> int:
        return sum(store.numel() * store.element_size() for store in (*self.keys, *self.values))


def allocate(
    layers: list[tuple[int, int, int]], pages: int, page: int, *, dtype: torch.dtype, device: torch.device
) -> Pool:
    """A pool of zeros. `layers` holds, for each layer, key/value heads, size of a key, size of a value."""
    slots = pages * page
    keys = tuple(torch.zeros(slots, heads, size, dtype=dtype, device=device) for heads, size, _ in layers)
    values = tuple(torch.zeros(slots, heads, size, dtype=dtype, device=device) for heads, _, size in layers)
    return Pool(keys, values, page)


@dataclass(frozen=True)
class Prefill:
    """Packed prompts, stored as they are read. `slots_T` says where each token goes."""

    packed: Packed
    pool: Pool
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

    pool: Pool
    slots_B: Tensor  # where the new token goes
    lengths_B: Tensor  # int32
    table_BP: Tensor  # int32: the pages of every row, in order
    blocks: tuple[Block, ...] = ()  # on a CPU: rows of one rounded length
    splits: int = 1  # on CUDA: pieces into which a row's past is cut

    @property
    def total(self) -> int:
        return self.slots_B.shape[0]

    def attend(self, q_BHD: Tensor, k_BKD: Tensor, v_BKD: Tensor, call: Call) -> Tensor:
        self.pool.write(call.layer, self.slots_B, k_BKD, v_BKD)
        if self.blocks:
            return self._by_block(q_BHD, v_BKD.shape[-1], call)
        from ascent.models.paged_cuda import paged_attention  # triton exists on CUDA machines alone

        return paged_attention(
            q_BHD.contiguous(), self.pool.keys[call.layer], self.pool.values[call.layer], self.table_BP, self.lengths_B,
            page=self.pool.page, splits=self.splits, scaling=call.scaling, window=call.window, softcap=call.softcap,
        )  # fmt: skip

    def _by_block(self, q_BHD: Tensor, size: int, call: Call) -> Tensor:
        if len(self.blocks) == 1:
            return self.blocks[0].attend(q_BHD, self.pool, call)
        out_BHD = q_BHD.new_empty(*q_BHD.shape[:2], size)
        for block in self.blocks:
            out_BHD[block.rows] = block.attend(q_BHD[block.rows], self.pool, call)
        return out_BHD


@dataclass(frozen=True)
class Block:
    """Rows that are padded to the same L and run at once; what lies beyond a row's length is masked.

    Their past is gathered, or read where it lies if the rows follow one another, each in its own page.
    """

    rows: Tensor | slice
    slots_X: Tensor | None  # N x L slots, flat; beyond a row's length they point at its last page or at page 0
    lengths_N: Tensor
    length: int
    masks: dict[int | None, Tensor] = field(default_factory=dict)  # per window: 0 where seen, -inf elsewhere

    def attend(self, q_NHD: Tensor, pool: Pool, call: Call) -> Tensor:
        heads, _, size = call.heads
        # The R query heads that share a key/value head are rows of one product: nothing is repeated.
        count, together, _ = q_NHD.shape
        q_NKRD = q_NHD.view(count, heads, together // heads, -1)
        k_NKLD, v_NKLD = self._past(pool, call.layer)
        mask_N11L = self._mask(call.window, q_NHD.dtype)
        if call.softcap is None:
            out_NKRD = F.scaled_dot_product_attention(q_NKRD, k_NKLD, v_NKLD, attn_mask=mask_N11L, scale=call.scaling)
        else:
            scores_NKRL = (q_NKRD @ k_NKLD.mT) * call.scaling
            scores_NKRL = (scores_NKRL / call.softcap).tanh() * call.softcap + mask_N11L
            out_NKRD = scores_NKRL.float().softmax(-1).to(q_NHD.dtype) @ v_NKLD
        return out_NKRD.reshape(count, together, size)

    def _past(self, pool: Pool, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values as (N, K, L, D)."""
        count = self.lengths_N.shape[0]
        if self.slots_X is None:
            assert isinstance(self.rows, slice)
            return pool.in_order(layer, self.rows, self.length)
        gathered = (store.index_select(0, self.slots_X) for store in (pool.keys[layer], pool.values[layer]))
        keys, values = (flat.view(count, self.length, *flat.shape[1:]).transpose(1, 2) for flat in gathered)
        return keys, values

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        if window not in self.masks:
            places_L = torch.arange(self.length)
            seen_NL = places_L < self.lengths_N[:, None]
            if window is not None:
                seen_NL &= places_L >= self.lengths_N[:, None] - window
            mask_NL = torch.zeros(seen_NL.shape, dtype=dtype).masked_fill_(~seen_NL, -torch.inf)
            self.masks[window] = mask_NL[:, None, None, :]
        return self.masks[window]


def rounded(length: int) -> int:
    """A row's length, rounded up: four steps to each doubling."""
    step = max(STEP, 2 ** ((length - 1).bit_length() - 3)) if length > STEP else STEP
    return -(-length // step) * step


def can_lie_in_order(page: int) -> bool:
    """Whether a page of that many tokens can hold a row to be read where it lies: any length in it, rounded, fits."""
    return rounded(page) == page


def grouped(lengths: list[int], width: int) -> dict[int, list[int]]:
    """Padded length -> rows. Shorter rows join longer ones where padding them costs less than a block of their own.

    `width` is how many numbers a token stores.
    """
    groups: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        groups.setdefault(rounded(length), []).append(row)
    sizes = sorted(groups)
    for short, long in pairwise(sizes):
        if len(groups[short]) * (long - short) * width < BLOCK_COST:
            groups[long] = sorted(groups.pop(short) + groups[long])
    return groups


def new_slots(table_BP: Tensor, stored_B: Tensor, page: int) -> Tensor:
    """Where the next token of every row goes, by how many it has stored."""
    places_B = stored_B.long()
    pages_B = table_BP.gather(1, (places_B // page)[:, None])[:, 0].long()
    return pages_B * page + places_B % page


def decode_on_cpu(pool: Pool, table_BP: Tensor, stored_B: Tensor) -> Decode:
    """The context of one step: `stored_B` tokens of each row lie in the pool, and one more comes."""
    slots_B = new_slots(table_BP, stored_B, pool.page)
    lengths_B = stored_B + 1
    groups = grouped(lengths_B.tolist(), pool.width)
    blocks = []
    for length, rows in groups.items():
        rows_N = torch.tensor(rows)
        pages = -(-length // pool.page)
        table_NP = table_BP[rows_N, :pages] if len(groups) > 1 else table_BP[:, :pages]
        if table_NP.shape[1] < pages:  # the table ends before the rounded length does: page 0 is masked anyway
            table_NP = F.pad(table_NP, (0, pages - table_NP.shape[1]))
        slots_NX = (table_NP.long()[:, :, None] * pool.page + torch.arange(pool.page)).flatten(1)[:, :length]
        lengths_N = lengths_B[rows_N] if len(groups) > 1 else lengths_B
        blocks.append(Block(rows_N, slots_NX.flatten(), lengths_N, length))
    return Decode(pool, slots_B, lengths_B, table_BP, tuple(blocks))
