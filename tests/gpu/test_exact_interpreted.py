"""The kernels of exact arithmetic in Triton's interpreter: values against float64, bits between ways to compute them.

The interpreter multiplies tiles with numpy, whose order of summation follows the shape of a tile. A tensor core's does
not, so here a product of tiles is computed in float64 and rounded once. What remains is what the kernels decide: which
tiles are added in which order. That the hardware agrees is held by tests/gpu/test_exact_on_cuda.py.

They need triton, and TRITON_INTERPRET=1 from the start of the process:

    TRITON_INTERPRET=1 python -m pytest tests/gpu/test_exact_interpreted.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)

from triton.runtime import interpreter

from ascent.engines.counter_rng import exponentials
from ascent.engines.native.batch_state import SamplingState
from ascent.engines.native.runner import padded_size
from ascent.engines.native.sampling_triton import sample_full_vocab_cuda
from ascent.models import (
    exact_attention_cuda,
    exact_decode_cuda,
    exact_head_cuda,
    exact_linear_cuda,
)
from ascent.models.head import Head, TileConfig, head_logits
from ascent.models.layer_patching import EXACT
from ascent.models.prefix_groups import MEMBERS, PrefixGroups
from ascent.models.softmax_sums_cuda import LANES


def _values(handle: Any) -> Any:
    bits = handle.data
    wide = (
        (bits.astype(np.uint32) << 16).view(np.float32) if bits.dtype == np.uint16 else bits
    )  # bfloat16
    return wide.astype(np.float64)


def _dot(self: Any, a: Any, b: Any, d: Any, *precision: Any) -> Any:
    return interpreter.TensorHandle(
        (_values(a) @ _values(b)).astype(np.float32) + d.data, d.dtype.scalar
    )


@pytest.fixture(autouse=True)
def one_rounding_per_product(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", _dot)
    stock = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        stock(tensor, scope)  # newer versions of numpy refuse its int() of an array
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)
    yield


def bf16(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape) * scale).bfloat16()


@pytest.fixture
def no_stock_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_linear_cuda, "stock_rows", lambda rows: 0)


@pytest.mark.usefixtures("no_stock_product")
@pytest.mark.parametrize("depth", [96, 1000])
def test_rows_of_a_linear_layer(depth: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = bf16(70, depth), bf16(40, depth, scale=depth**-0.5), bf16(40)
    found = exact_linear_cuda.forward(x, weight, bias)
    expected = x.double() @ weight.double().T + bias.double()
    assert float((found.double() - expected).abs().max()) < 0.05
    assert torch.equal(exact_linear_cuda.forward(x[5:6], weight, bias), found[5:6])
    assert torch.equal(exact_linear_cuda.forward(x, weight[8:16], bias[8:16]), found[:, 8:16])
    for tile in exact_linear_cuda.TILES[2:5]:
        again = exact_linear_cuda.triton_product(x, weight, bias, torch.empty_like(found), tile)
        assert torch.equal(again, found)


@pytest.mark.usefixtures("no_stock_product")
def test_the_order_of_a_linear_layer_can_be_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other steps of K give other bits: the test above can fail."""
    torch.manual_seed(0)
    x, weight = bf16(8, 1000), bf16(40, 1000)
    found = exact_linear_cuda.multiply(x, weight, None, torch.float32)
    monkeypatch.setattr(exact_linear_cuda, "DEPTH", 32)
    assert not torch.equal(exact_linear_cuda.multiply(x, weight, None, torch.float32), found)


@pytest.mark.parametrize("equal", [True, False])
def test_a_product_of_the_library_is_used_for_whole_blocks_of_rows_if_it_has_the_same_bits(
    equal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x, weight, bias, asked = bf16(25, 96), bf16(40, 96), bf16(40), []
    found = exact_linear_cuda.triton_product(x, weight, bias, torch.empty(25, 40).bfloat16())

    def stock(
        x_MK: Tensor,
        weight_NK: Tensor,
        bias_N: Tensor | None,
        dtype: torch.dtype,
        out_MN: Any = None,
    ) -> Tensor:
        asked.append(len(x_MK))
        out_MN = torch.empty(len(x_MK), len(weight_NK), dtype=dtype) if out_MN is None else out_MN
        exact_linear_cuda.triton_product(x_MK, weight_NK, bias_N, out_MN)
        return out_MN if equal else out_MN.neg_()

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(exact_linear_cuda, "stock_product", stock)
    monkeypatch.setattr(exact_linear_cuda, "STOCK_ROWS", 8)
    monkeypatch.setattr(exact_linear_cuda, "COMPARED", 2000)
    monkeypatch.setattr(exact_linear_cuda, "_compared", {})
    assert torch.equal(exact_linear_cuda.multiply(x, weight, bias, torch.bfloat16), found)
    assert asked == (
        [24] * 4 if equal else [24]
    )  # three comparisons of 960 outputs, then the rows of the batch


def test_rows_that_the_library_may_get() -> None:
    """Every size of a decode step, and few others."""
    assert [exact_linear_cuda.stock_rows(n) for n in (511, 512, 1000, 1024, 16400)] == [
        0,
        512,
        512,
        1024,
        16384,
    ]
    sizes = {padded_size(n) for n in range(1, 513)}
    assert all(exact_linear_cuda.stock_rows(n) == n for n in sizes)
    assert len({exact_linear_cuda.stock_rows(n) for n in range(1, 512)}) < 50


@pytest.mark.usefixtures("no_stock_product")
def test_wide_products_and_gradients() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 10, requires_grad=True), torch.randn(3, 10, requires_grad=True)
    out = exact_linear_cuda.wide_linear(x, weight)
    torch.testing.assert_close(out, x @ weight.T)
    (out * torch.arange(15.0).view(5, 3)).sum().backward()
    torch.testing.assert_close(x.grad, torch.arange(15.0).view(5, 3) @ weight.detach())


HEADS, KV_HEADS, SIZE = 4, 2, 48
LENGTHS = [150, 70, 1]


def packed() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = (bf16(sum(LENGTHS), heads, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS))
    return q, k, v, torch.tensor([0, 150, 220, 221], dtype=torch.int32)


def test_packed_attention() -> None:
    q, k, v, offsets = packed()
    out, lse = exact_attention_cuda.packed_forward(q, k, v, offsets, offsets, 150, SIZE**-0.5)
    for start, length in zip(offsets.tolist(), LENGTHS, strict=False):
        own = slice(start, start + length)
        keys, values = (x[own].double().repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[own].double(), keys) * SIZE**-0.5
        scores = scores.masked_fill(
            ~torch.ones(length, length, dtype=torch.bool).tril(), -torch.inf
        )
        expected = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
        assert float((out[own] - expected).abs().max()) < 0.03
        assert float((lse[:, own] - scores.logsumexp(-1)).abs().max()) < 0.01
    # The last queries of a sequence alone, as with a shared prefix.
    some, keys = (torch.tensor([0, n], dtype=torch.int32) for n in (50, 150))
    tail = exact_attention_cuda.packed_forward(
        q[100:150], k[:150], v[:150], some, keys, 50, SIZE**-0.5
    )
    assert torch.equal(tail[0], out[100:150]) and torch.equal(tail[1], lse[:, 100:150])


@pytest.mark.parametrize("block_size", [16, 24, 64, 128])
def test_decode_has_the_bits_of_packed_attention(block_size: int) -> None:
    """Blocks in any order, NaN in slots that hold nothing, rows alone and in a group that shares 96 tokens."""
    q, k, v, offsets = packed()
    out, _ = exact_attention_cuda.packed_forward(q, k, v, offsets, offsets, 150, SIZE**-0.5)
    positions, blocks = [149, 128, 127, 100], -(-150 // block_size)
    order = torch.randperm(blocks) + 1
    keys = torch.full(((blocks + 1) * block_size, KV_HEADS, SIZE), torch.nan).bfloat16()
    values, places = keys.clone(), torch.arange(150)
    slots = order[places // block_size] * block_size + places % block_size
    keys[slots], values[slots] = k[:150], v[:150]
    table = order.int().expand(len(positions), -1).contiguous()
    lengths = torch.tensor(positions, dtype=torch.int32) + 1
    inputs = (q[positions].contiguous(), keys, values, table, lengths)
    options: dict[str, Any] = {
        "block_size": block_size,
        "scaling": SIZE**-0.5,
        "slots_B": slots[positions],
    }
    options |= {"new_k_BKD": k[positions], "new_v_BKD": v[positions]}
    keys[slots[149]] = values[slots[149]] = (
        torch.nan
    )  # the newest of all tokens, until its row writes it
    assert torch.equal(exact_decode_cuda.decode_attention(*inputs, **options), out[positions])
    members = torch.full((2, MEMBERS), -1, dtype=torch.int32)
    members[0, :3] = torch.tensor([0, 1, 3])
    groups = PrefixGroups(members, torch.tensor([96, 96, 0, 96], dtype=torch.int32))
    assert torch.equal(
        exact_decode_cuda.decode_attention(*inputs, **options, prefixes=groups), out[positions]
    )


@pytest.mark.parametrize("splits", [1, 2, 3, 8])
def test_spans_of_a_long_row_have_the_bits_of_packed_attention(splits: int) -> None:
    """Rows that end in, before and behind the first token of a span; with prefixes of no, one and two whole spans."""
    torch.manual_seed(0)
    length, block_size = 600, 64
    q, k, v = (bf16(length, heads, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS))
    ends = torch.tensor([0, length], dtype=torch.int32)
    out, _ = exact_attention_cuda.packed_forward(q, k, v, ends, ends, length, SIZE**-0.5)
    some, keys = (
        torch.tensor([0, n], dtype=torch.int32) for n in (100, 300)
    )  # a tile over the end of a span
    tail, _ = exact_attention_cuda.packed_forward(
        q[200:300], k[:300], v[:300], some, keys, 100, SIZE**-0.5
    )
    assert torch.equal(tail, out[200:300])
    positions = [599, 512, 511, 256, 255, 40]
    store, places = (
        torch.full((11 * block_size, KV_HEADS, SIZE), torch.nan).bfloat16(),
        torch.arange(length),
    )
    keys, values = store.clone(), store.clone()
    keys[places + block_size], values[places + block_size] = k, v
    table = torch.arange(1, 11, dtype=torch.int32).expand(len(positions), -1).contiguous()
    inputs = (
        q[positions].contiguous(),
        keys,
        values,
        table,
        torch.tensor(positions, dtype=torch.int32) + 1,
    )
    options: dict[str, Any] = {"block_size": block_size, "scaling": SIZE**-0.5, "splits": splits}
    options |= {
        "slots_B": torch.tensor(positions) + block_size,
        "new_k_BKD": k[positions],
        "new_v_BKD": v[positions],
    }
    assert torch.equal(exact_decode_cuda.decode_attention(*inputs, **options), out[positions])
    members = torch.full((3, MEMBERS), -1, dtype=torch.int32)
    members[0, :2], members[1, :2] = torch.tensor([0, 1]), torch.tensor([2, 3])
    for shared in ([512, 512, 256, 256, 0, 0], [448, 448, 192, 192, 0, 0], [320, 320, 0, 0, 0, 0]):
        groups = PrefixGroups(members, torch.tensor(shared, dtype=torch.int32))
        assert torch.equal(
            exact_decode_cuda.decode_attention(*inputs, **options, prefixes=groups), out[positions]
        )


@pytest.mark.usefixtures("no_stock_product")
def test_sampled_log_probs_are_those_of_training() -> None:
    torch.manual_seed(0)
    rows, vocab, size = 5, 3000, 96
    hidden, head = bf16(rows, size), Head(bf16(vocab, size, scale=0.3), kernels=EXACT)
    temperature = torch.tensor([1.0, 0.7, 1.0, 0.7, 2.0])
    logits = hidden.double() @ head.weight_VD.double().T / temperature[:, None].double()
    keys = torch.randint(0, 2**31 - 1, (rows, 2), dtype=torch.int32)
    position, greedy = torch.tensor([0, 3, 9, 2, 5]).int(), torch.tensor([0, 0, 1, 0, 0]).int()
    none, ones = torch.zeros(rows).int(), torch.ones(rows)
    words = (keys[:, 0].contiguous(), keys[:, 1].contiguous(), position)
    params = SamplingState(
        temperature, greedy, *words, none, none, ones, none.float(), none[:, None]
    )
    tokens, logprobs = sample_full_vocab_cuda(head_logits(hidden, head), params)
    drawn = exponentials(keys.numpy().astype(np.uint32), position.numpy(), vocab).double()
    assert (
        tokens.tolist()
        == torch.where(greedy.bool(), logits.argmax(1), (logits - drawn.log()).argmax(1)).tolist()
    )
    expected = logits.log_softmax(1)
    taken = expected.gather(1, tokens.long()[:, None])[:, 0]
    torch.testing.assert_close(logprobs.double(), taken, rtol=0, atol=1e-5)
    assert torch.equal(
        exact_head_cuda.token_logprobs(hidden, head, tokens.long(), temperature), logprobs
    )
    config = TileConfig(1.0, None, 1.0, True, True, (0, 0), EXACT)
    lse, mean, logit, collision = exact_head_cuda.reduce_logits(
        hidden[2:3], head.weight_VD, None, tokens[2:3].long(), config
    )
    assert torch.equal(logit - lse, logprobs[2:3])
    entropy = -(expected[2].exp() * expected[2]).sum()
    assert abs(float(lse - mean - entropy)) < 1e-5
    assert abs(float(collision - (2 * expected[2]).logsumexp(0))) < 1e-5


def test_lanes_have_the_order_that_is_promised() -> None:
    """Lane l sums the logits l, l + LANES, and so on."""
    torch.manual_seed(0)
    logits = torch.randn(1, 3000) * 3
    found, masses, largest = torch.zeros(4, 1), torch.zeros(1, LANES), torch.zeros(1)
    exact_head_cuda._reduce[(1,)](
        logits,
        torch.zeros(1, dtype=torch.int64),
        torch.ones(1),
        largest,
        masses,
        found,
        3000,
        3000,
        1,
        ENTROPY=False,
        COLLISION=False,
        LANES=LANES,
    )
    lanes = np.full((2, LANES), -np.inf, np.float32)
    lanes.reshape(-1)[:3000] = logits.numpy()[0]
    top = lanes.max(0)
    mass = np.float32(1) + np.where(
        lanes[1] > -np.inf, np.exp(-np.abs(lanes[0] - lanes[1]), dtype=np.float32), 0
    )
    assert float(largest) == float(top.max())
    assert masses[0].tolist() == (mass * np.exp(top - top.max(), dtype=np.float32)).tolist()
