"""Paged attention on a CPU, both ways: written where it should be, read back as one dense attention would."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest
import torch

from ascent.models import paged_attention_cpu
from ascent.models.attention import AttentionCall
from ascent.models.paged_attention import KVCache, allocate_kv_cache, slot_mapping
from ascent.models.paged_attention_cpu import CompiledDecode
from ascent.models.paged_attention_sdpa import padded_length, sdpa_decode

LENGTHS = [1, 5, 31, 32, 33, 64, 100, 257]
CPU = torch.device("cpu")


def compiled(kv_cache: KVCache, table_BP: torch.Tensor, lengths_B: torch.Tensor) -> CompiledDecode:
    return CompiledDecode(kv_cache, table_BP, lengths_B, int(lengths_B.sum()))


WAYS = {"compiled": compiled, "sdpa": sdpa_decode}


SINKS = torch.tensor([-200.0, -1.0, 0.0, 0.7, 2.5, 30.0])


def call(
    window: int | None = None,
    softcap: float | None = None,
    size: tuple[int, int] = (8, 8),
    sinks_H: torch.Tensor | None = None,
) -> AttentionCall:
    return AttentionCall(0.3, window, softcap, 0.0, 0, (2, *size), sinks_H)


def dense(
    q_HD: torch.Tensor, k_LKD: torch.Tensor, v_LKD: torch.Tensor, ask: AttentionCall
) -> torch.Tensor:
    """One query over its past, in float64, head by head."""
    outs = []
    for head in range(q_HD.shape[0]):
        keys, values = k_LKD[:, head // 3].double(), v_LKD[:, head // 3].double()
        scores = keys @ q_HD[head].double() * ask.scaling
        if ask.softcap is not None:
            scores = ask.softcap * (scores / ask.softcap).tanh()
        if ask.window is not None:
            scores[: -ask.window] = -torch.inf
        if ask.sinks_H is not None:
            scores = torch.cat([scores, ask.sinks_H[head : head + 1].double()])
        outs.append(scores.softmax(0)[: len(values)] @ values)
    return torch.stack(outs)


class Past:
    """Rows of these lengths whose tokens, all but the last, lie in a pool, in pages that lie anywhere."""

    def __init__(
        self, lengths: list[int], block_size: int, size: tuple[int, int] = (8, 8), seed: int = 0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        tokens = [
            tuple(torch.randn(n, 2, each, generator=generator) for each in size) for n in lengths
        ]
        widest = -(-max(lengths) // block_size)
        self.kv_cache = allocate_kv_cache(
            [(2, *size)], 1 + len(lengths) * widest, block_size, dtype=torch.float32, device=CPU
        )
        order = 1 + torch.randperm(
            len(lengths) * widest, generator=torch.Generator().manual_seed(block_size)
        )
        self.table = order.view(len(lengths), widest).int()
        self.tokens, self.lengths = tokens, torch.tensor(lengths, dtype=torch.int32)
        for row, (keys, values) in enumerate(tokens):
            self.kv_cache.write(0, self.slots(row)[:-1], keys[:-1], values[:-1])
        self.q = torch.randn(len(lengths), 6, size[0], generator=generator)
        self.k, self.v = (torch.stack([each[n][-1] for each in tokens]) for n in (0, 1))

    def slots(self, row: int) -> torch.Tensor:
        places = torch.arange(int(self.lengths[row]))
        return (
            self.table[row, places // self.kv_cache.block_size].long() * self.kv_cache.block_size
            + places % self.kv_cache.block_size
        )

    def attend(self, way: str, ask: AttentionCall) -> torch.Tensor:
        return WAYS[way](self.kv_cache, self.table, self.lengths).attend(
            self.q, self.k, self.v, ask
        )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize(
    ("window", "softcap", "sinks_H"),
    [
        (None, None, None),
        (7, None, None),
        (None, 2.0, None),
        (40, 1.5, None),
        (None, None, SINKS),
        (7, None, SINKS),
    ],
)
def test_decode_is_dense_attention_over_each_rows_own_past(
    way: str,
    block_size: int,
    window: int | None,
    softcap: float | None,
    sinks_H: torch.Tensor | None,
) -> None:
    past, ask = Past(LENGTHS, block_size), call(window, softcap, sinks_H=sinks_H)
    out_BHD = past.attend(way, ask)
    for row, (keys, values) in enumerate(past.tokens):
        assert torch.allclose(
            out_BHD[row].double(), dense(past.q[row], keys, values, ask), atol=1e-5
        )
        assert torch.equal(
            past.kv_cache.keys[0][past.slots(row)], keys
        )  # the new token is stored, the others are kept
        assert torch.equal(past.kv_cache.values[0][past.slots(row)], values)


@pytest.mark.parametrize(
    "size", [(1, 1), (5, 7), (12, 20), (16, 16), (24, 8), (64, 64), (128, 128)]
)
def test_heads_of_any_size(size: tuple[int, int]) -> None:
    past, ask = Past(LENGTHS, 16, size), call(size=size)
    out_BHD = past.attend("compiled", ask)
    for row, (keys, values) in enumerate(past.tokens):
        assert torch.allclose(
            out_BHD[row].double(), dense(past.q[row], keys, values, ask), atol=1e-5
        )


@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_stands_still_stores_nothing_and_the_others_are_as_without_it(way: str) -> None:
    past, other = Past(LENGTHS, 4), Past(LENGTHS, 4)
    past.lengths[2], past.k[2], past.v[2] = 0, 77, 77
    out_BHD, expected = past.attend(way, call()), other.attend(way, call())
    rest = [row for row in range(len(LENGTHS)) if row != 2]
    assert torch.equal(out_BHD[rest], expected[rest])
    assert torch.isfinite(out_BHD).all()
    assert not (past.kv_cache.keys[0][4:] == 77).any()  # page 0 may be written to


@pytest.mark.parametrize("way", WAYS)
def test_neither_neighbours_nor_pages_change_a_bit(way: str) -> None:
    expected = Past(LENGTHS, 16).attend(way, call())
    for block_size in (1, 3, 64, 512):
        assert torch.equal(Past(LENGTHS, block_size).attend(way, call()), expected)
    past = Past(LENGTHS, 16)
    for row in range(len(LENGTHS)):
        one = slice(row, row + 1)
        alone = WAYS[way](past.kv_cache, past.table[one], past.lengths[one])
        assert torch.equal(
            alone.attend(past.q[one], past.k[one], past.v[one], call()), expected[one]
        )


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Past(LENGTHS, 16).attend("compiled", call())
    monkeypatch.setattr(paged_attention_cpu, "PARALLEL_THRESHOLD", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(Past(LENGTHS, 16).attend("compiled", call()), expected)


def test_an_interrupt_waits_for_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """They read and write tensors that nobody else holds."""
    running, ended = threading.Event(), []

    def slow(asked: object, start: int, end: int) -> int:
        running.set()
        time.sleep(0.2)
        ended.append(start)
        return 0

    class Interrupted(Future):  # type: ignore[type-arg]
        def result(self, timeout: float | None = None) -> object:
            running.wait()
            raise KeyboardInterrupt

    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr("concurrent.futures.thread._base.Future", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        paged_attention_cpu._run(
            slow, paged_attention_cpu._Arguments(), 16, paged_attention_cpu.PARALLEL_THRESHOLD
        )
    assert len(ended) == 8


def test_other_numbers_than_float32_are_refused() -> None:
    past = Past(LENGTHS, 16)
    past.q = past.q.bfloat16()
    with pytest.raises(
        ValueError, match=r"torch.bfloat16 in compiled attention, which takes float32"
    ):
        past.attend("compiled", call())


def test_queries_and_keys_may_lie_apart() -> None:
    past = Past(LENGTHS, 16)
    expected = past.attend("compiled", call())
    past.q = past.q.transpose(0, 1).contiguous().transpose(0, 1)
    past.k = past.k.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(past.attend("compiled", call()), expected)


def test_weights_are_accurate_wherever_scores_lie() -> None:
    """Two tokens whose values are 0 and 1: what comes out is the second one's weight."""
    gaps = torch.cat([torch.linspace(-86, 20, 400), torch.tensor([-1e4, 1e4, 0.0])])
    count = len(gaps)
    kv_cache = allocate_kv_cache([(1, 4, 4)], 1 + count, 2, dtype=torch.float32, device=CPU)
    table, lengths = (
        torch.arange(1, 1 + count).view(-1, 1).int(),
        torch.full((count,), 2, dtype=torch.int32),
    )
    kv_cache.keys[0][2::2, :, 0] = 3.0
    k, v = torch.zeros(count, 1, 4), torch.ones(count, 1, 4)
    k[:, 0, 0] = 3 + gaps
    q = torch.tensor([1.0, 0, 0, 0]).expand(count, 1, 4)
    out = compiled(kv_cache, table, lengths).attend(
        q, k, v, AttentionCall(1.0, None, None, 0.0, 0, (1, 4, 4))
    )
    exact = (k[:, 0, 0].double() - 3).sigmoid()
    assert torch.allclose(out[:, 0, 0].double(), exact, rtol=1e-6, atol=1e-37)


def test_what_is_not_a_number_stays_so() -> None:
    for name in ("q", "k", "v"):
        past = Past(LENGTHS, 16)
        getattr(past, name)[3, 1] = torch.nan
        out_BHD = past.attend("compiled", call())
        assert out_BHD[3].isnan().any()
        assert torch.isfinite(out_BHD[[row for row in range(len(LENGTHS)) if row != 3]]).all()


def test_blocks_are_copied_in_every_layer() -> None:
    kv_cache = allocate_kv_cache([(2, 8, 4)] * 2, 6, 4, dtype=torch.float32, device=CPU)
    stores = [store.normal_().clone() for store in (*kv_cache.keys, *kv_cache.values)]
    kv_cache.copy_blocks([2, 2, 4], [1, 5, 3])
    for store, before in zip((*kv_cache.keys, *kv_cache.values), stores, strict=True):
        assert torch.equal(store.view(6, -1), before.view(6, -1)[[0, 2, 2, 4, 4, 2]])


def test_a_printed_cache_reads_none_of_its_blocks() -> None:
    kv_cache = allocate_kv_cache([(1, 4, 4)], 2, 2, dtype=torch.float32, device=CPU)
    assert repr(kv_cache) == "KVCache(block_size=2, memory=None)"


def test_new_slots() -> None:
    table = torch.tensor([[3, 5], [7, 1]], dtype=torch.int32)
    assert slot_mapping(table, torch.tensor([1, 6]), 4).tolist() == [3 * 4 + 1, 1 * 4 + 2]


def test_lengths_are_rounded_four_times_a_doubling() -> None:
    assert [padded_length(n) for n in (1, 16, 17, 33, 128, 129, 257, 1025)] == [
        16,
        16,
        32,
        48,
        128,
        160,
        320,
        1280,
    ]
