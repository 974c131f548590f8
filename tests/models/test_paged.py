"""Paged attention on a CPU: written where it should be, read back as one dense attention would, bit-neutral padding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ascent.models.attention import Call
from ascent.models.paged import (
    STEP,
    Block,
    allocate,
    can_lie_in_order,
    decode_on_cpu,
    grouped,
    new_slots,
    rounded,
)

LENGTHS = [1, 5, 31, 32, 33, 64, 100, 257]


def call(window: int | None = None, softcap: float | None = None) -> Call:
    return Call(0.3, window, softcap, 0.0, 0, (2, 8, 8))


def dense(q_HD: torch.Tensor, k_LKD: torch.Tensor, v_LKD: torch.Tensor, ask: Call) -> torch.Tensor:
    """One query over its past, in float64, head by head."""
    outs = []
    for head in range(q_HD.shape[0]):
        keys, values = k_LKD[:, head // 3].double(), v_LKD[:, head // 3].double()
        scores = keys @ q_HD[head].double() * ask.scaling
        if ask.softcap is not None:
            scores = ask.softcap * (scores / ask.softcap).tanh()
        if ask.window is not None:
            scores[: -ask.window] = -torch.inf
        outs.append(scores.softmax(0) @ values)
    return torch.stack(outs)


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (7, None), (None, 2.0), (40, 1.5)])
def test_decode_is_dense_attention_over_each_rows_own_past(
    page: int, window: int | None, softcap: float | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    widest = -(-max(LENGTHS) // page)
    pool = allocate([(2, 8, 8)], 1 + len(LENGTHS) * widest, page, dtype=torch.float32, device=torch.device("cpu"))
    order = 1 + torch.randperm(len(LENGTHS) * widest, generator=generator)  # pages lie anywhere
    table = order.view(len(LENGTHS), widest).int()
    past = [(torch.randn(n, 2, 8, generator=generator), torch.randn(n, 2, 8, generator=generator)) for n in LENGTHS]
    stored = torch.tensor([n - 1 for n in LENGTHS], dtype=torch.int32)
    for row, (keys, values) in enumerate(past):
        places = torch.arange(len(keys) - 1)
        slots = table[row, places // page].long() * page + places % page
        pool.write(0, slots, keys[:-1], values[:-1])
    q_BHD = torch.randn(len(LENGTHS), 6, 8, generator=generator)
    new_k, new_v = (torch.stack([each[n][-1] for each in past]) for n in (0, 1))
    ask = call(window, softcap)
    out_BHD = decode_on_cpu(pool, table, stored).attend(q_BHD, new_k, new_v, ask)
    for row, (keys, values) in enumerate(past):
        assert torch.allclose(out_BHD[row].double(), dense(q_BHD[row], keys, values, ask), atol=1e-5)


@pytest.mark.parametrize(("heads", "together", "size"), [(4, 1, 16), (2, 2, 16), (3, 3, 64), (1, 4, 256), (8, 2, 128)])
def test_masked_padding_changes_no_bit(heads: int, together: int, size: int) -> None:
    """What lets rows of other lengths run beside each other: padding beyond a row's end, whatever lies there."""
    generator = torch.Generator().manual_seed(0)
    for length in (1, 31, 33, 64, 130, 513):
        q = torch.randn(3, heads, together, size, generator=generator)
        k, v = (torch.randn(3, heads, 1024, size, generator=generator) for _ in range(2))

        def run(padded: int, rows: slice, q=q, k=k, v=v, length=length) -> torch.Tensor:  # type: ignore[no-untyped-def]
            mask = torch.zeros(1, 1, 1, padded)
            mask[..., length:] = -torch.inf
            past = (x[rows, :, :padded].contiguous() for x in (k, v))
            return F.scaled_dot_product_attention(q[rows], *past, attn_mask=mask)

        alone = run(rounded(length), slice(1, 2))
        for padded in (rounded(length) + STEP, 640, 1024):
            assert torch.equal(run(padded, slice(0, 3))[1:2], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_in_order_are_read_where_they_lie_with_the_bits_of_gathered_ones(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    pool = allocate([(2, 8, 8)], 6, 64, dtype=dtype, device=torch.device("cpu"))
    for store in (*pool.keys, *pool.values):
        store.copy_(torch.randn(store.shape, generator=generator))
    table, lengths = torch.arange(1, 5, dtype=torch.int32)[:, None], torch.tensor([64, 3, 17, 33])
    q_BHD = torch.randn(4, 6, 8, generator=generator).to(dtype)
    (gathered,) = decode_on_cpu(pool, table, lengths - 1).blocks
    in_order = Block(slice(0, 4), None, lengths, gathered.length)
    expected = gathered.attend(q_BHD, pool, call())
    assert torch.equal(in_order.attend(q_BHD, pool, call()), expected)
    behind = Block(slice(1, 4), None, lengths[1:], 48)
    assert torch.equal(behind.attend(q_BHD[1:], pool, call()), expected[1:])
    pool.copy_pages([2, 2, 4], [1, 5, 3], 9)
    pages = pool.keys[0].view(6, 64, 2, 8)
    assert torch.equal(pages[[1, 5, 3], :9], pages[[2, 2, 4], :9])
    assert not torch.equal(pages[1, 9:], pages[2, 9:])


def test_a_page_can_lie_in_order_if_rounding_never_passes_its_end() -> None:
    assert [can_lie_in_order(n) for n in (8, 16, 100, 128, 144, 160)] == [False, True, False, True, False, True]


def test_new_slots() -> None:
    table = torch.tensor([[3, 5], [7, 1]], dtype=torch.int32)
    assert new_slots(table, torch.tensor([1, 6]), 4).tolist() == [3 * 4 + 1, 1 * 4 + 2]


def test_lengths_are_rounded_four_times_a_doubling() -> None:
    assert [rounded(n) for n in (1, 16, 17, 33, 128, 129, 257, 1025)] == [16, 16, 32, 48, 128, 160, 320, 1280]


def test_few_short_rows_join_longer_ones_and_many_do_not() -> None:
    lengths = [10] * 3 + [300] * 5
    assert grouped(lengths, width=64) == {320: list(range(8))}
    assert grouped(lengths, width=6400) == {16: [0, 1, 2], 320: [3, 4, 5, 6, 7]}
    rows = [row for group in grouped([10, 700, 90, 33] * 9, 100).values() for row in group]
    assert sorted(rows) == list(range(36))
