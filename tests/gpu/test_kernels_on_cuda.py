"""Triton kernels of the training path: values and gradients against float64, and where they must not run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb
from transformers.models.qwen2.modeling_qwen2 import Qwen2Config, Qwen2MLP

from ascent.models.fused_logprobs import fused_logprobs, uses_triton
from ascent.models.head import Head
from ascent.models.layer_patching import fast_mlp, fast_norm, fast_rotary
from ascent.models.shared_input import find_groups
from ascent.models.shared_prefix import gather, gather_index

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.filterwarnings(
        "ignore:Attempting to run cuBLAS"
    ),  # the first product of torch's backward thread
]


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """By the norm of the difference: single elements round to bfloat16."""
    found, expected = found.detach().double(), expected.detach().double()
    error = float((found - expected).norm() / expected.norm().clamp(min=1e-12))
    assert error < tolerance, f"relative error {error:.2g}"


@pytest.mark.parametrize(
    ("rows", "vocab", "size", "options"),
    [
        (777, 5003, 192, {}),
        (130, 4096, 64, {"temperature": 0.7}),
        (64, 1000, 896, {"softcap": 20.0, "scale": 0.5, "bias": True}),
        (1, 300, 8, {}),
    ],
)
def test_the_head_and_its_gradients(
    rows: int, vocab: int, size: int, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(rows, size, device="cuda").bfloat16().requires_grad_()
    weight = (torch.randn(vocab, size, device="cuda") * size**-0.5).bfloat16().requires_grad_()
    bias = (
        torch.randn(vocab, device="cuda").bfloat16().requires_grad_()
        if options.get("bias")
        else None
    )
    tokens = torch.randint(0, vocab, (rows,), device="cuda")
    scale, softcap, temperature = (
        options.get(key, 1.0) for key in ("scale", "softcap", "temperature")
    )
    softcap = options.get("softcap")
    head = Head(weight, bias, scale, softcap)
    assert uses_triton(hidden, weight) == (torch.cuda.get_device_capability() >= (9, 0))
    found = fused_logprobs(
        hidden, tokens, head, temperature=temperature, entropy=True, collision=True
    )
    up, down = torch.randn(rows, device="cuda"), torch.randn(rows, device="cuda")
    (found.logprobs_N * up + found.entropy_N * down).sum().backward()

    exact = [
        None if each is None else each.detach().double().requires_grad_()
        for each in (hidden, weight, bias)
    ]
    logits = exact[0] @ exact[1].T + (0 if exact[2] is None else exact[2])
    logits = logits * scale
    logits = (logits if softcap is None else softcap * torch.tanh(logits / softcap)) / temperature
    logprobs = logits.log_softmax(1)
    taken, entropy = logprobs.gather(1, tokens[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(1)
    (taken * up + entropy * down).sum().backward()
    torch.testing.assert_close(found.logprobs_N.double(), taken, rtol=0, atol=2e-5)
    torch.testing.assert_close(found.entropy_N.double(), entropy, rtol=0, atol=2e-5)
    torch.testing.assert_close(
        found.log_collision_N.double(), (2 * logprobs).logsumexp(1), rtol=0, atol=2e-5
    )
    for ours, reference in zip((hidden, weight, bias), exact, strict=True):
        if ours is not None and reference is not None:
            close(ours.grad, reference.grad, 0.01)  # type: ignore[arg-type]


def test_a_row_of_the_head_does_not_depend_on_its_batch() -> None:
    torch.manual_seed(0)
    hidden, weight = (torch.randn(rows, 64, device="cuda").bfloat16() for rows in (700, 3000))
    tokens = torch.randint(0, 3000, (700,), device="cuda")
    every = fused_logprobs(hidden, tokens, Head(weight), entropy=True)
    some = fused_logprobs(hidden[300:431], tokens[300:431], Head(weight), entropy=True)
    assert torch.equal(every.logprobs_N[300:431], some.logprobs_N)
    assert torch.equal(every.entropy_N[300:431], some.entropy_N)


def test_a_micro_batch_without_trained_tokens_keeps_its_graph() -> None:
    hidden = torch.zeros(0, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(300, 64, device="cuda").bfloat16().requires_grad_()
    found = fused_logprobs(
        hidden, torch.zeros(0, dtype=torch.int64, device="cuda"), Head(weight), entropy=True
    )
    found.logprobs_N.sum().backward()
    assert weight.grad is not None and bool((weight.grad == 0).all())


@pytest.mark.parametrize("kind", [LlamaRMSNorm, GemmaRMSNorm])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_norms_and_their_gradients(kind: type[nn.Module], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = kind(1536).cuda().to(dtype)  # type: ignore[call-arg]
    nn.init.normal_(module.weight, 0.7, 0.2)  # type: ignore[arg-type]
    x = torch.randn(3, 301, 1536, device="cuda", dtype=dtype).requires_grad_()
    up = torch.randn_like(x)
    out = fast_norm(kind.forward, module, x)
    assert module.formula is not None
    out.backward(up)
    exact, wide = (
        x.detach().double().requires_grad_(),
        module.weight.detach().double().requires_grad_(),
    )  # type: ignore[operator]
    gain = wide if kind is LlamaRMSNorm else 1 + wide
    expected = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-6) * gain
    expected.backward(up.double())
    tolerance = 0.005 if dtype == torch.bfloat16 else 1e-5
    close(out, expected, tolerance)
    close(x.grad, exact.grad, tolerance)  # type: ignore[arg-type]
    close(module.weight.grad, wide.grad, tolerance)  # type: ignore[arg-type]


def test_rotary_embeddings_have_the_bits_of_the_stock_function_and_its_gradient() -> None:
    torch.manual_seed(0)
    rotary = fast_rotary(apply_rotary_pos_emb)
    angles = torch.randn(1, 40, 16, device="cuda")
    cos, sin = (torch.cat([each, each], -1).bfloat16() for each in (angles.cos(), angles.sin()))
    for _ in range(2):  # the first call compares
        ours, theirs = (
            [
                torch.randn(
                    1,
                    40,
                    heads,
                    32,
                    device="cuda",
                    generator=torch.Generator("cuda").manual_seed(heads),
                )
                .bfloat16()
                .transpose(1, 2)
                .requires_grad_()
                for heads in (6, 2)
            ]
            for _ in range(2)
        )
        found, expected = rotary(*ours, cos, sin), apply_rotary_pos_emb(*theirs, cos, sin)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        ups = [torch.randn_like(each) for each in expected]
        torch.autograd.backward(found, ups)
        torch.autograd.backward(expected, ups)
        for start, reference in zip(ours, theirs, strict=True):
            close(start.grad, reference.grad, 0.005)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("add_one", [False, True])
@pytest.mark.parametrize(
    ("rows", "size"), [(1, 1536), (513, 1536), (7, 64), (33, 3584), (256, 896), (5, 5120)]
)
def test_a_sum_and_its_norm_have_the_bits_of_two_kernels(
    rows: int, size: int, add_one: bool, dtype: torch.dtype
) -> None:
    from ascent.models.norm_cuda import FORMULAS, add_rms_norm, rms_norm

    x, residual = (torch.randn(1, rows, size, device="cuda").to(dtype) for _ in range(2))
    weight = torch.randn(size, device="cuda").to(dtype)
    total, normed = add_rms_norm(x, residual, weight, 1e-6, FORMULAS[add_one])
    assert torch.equal(total, residual + x)
    assert torch.equal(normed, rms_norm(residual + x, weight, 1e-6, FORMULAS[add_one]))


@pytest.mark.parametrize("adjacent", [False, True])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gated_mlps_and_their_gradients(activation: str, adjacent: bool) -> None:
    torch.manual_seed(0)
    config = Qwen2Config(hidden_size=128, intermediate_size=320, hidden_act=activation)
    ours, theirs = (Qwen2MLP(config).cuda().bfloat16() for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    if adjacent:
        (group,) = find_groups(ours, lambda part: type(part) is nn.Linear)
        group.store_adjacent()
    x = torch.randn(1, 50, 128, device="cuda").bfloat16()
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = fast_mlp(Qwen2MLP.forward, ours, mine), Qwen2MLP.forward(theirs, other)
    assert ours.is_silu_mlp == (activation == "silu")
    close(out, expected, 0.005)
    up = torch.randn_like(out)
    out.backward(up)
    expected.backward(up)
    close(mine.grad, other.grad, 0.01)  # type: ignore[arg-type]
    for one, reference in zip(ours.parameters(), theirs.parameters(), strict=True):
        close(one.grad, reference.grad, 0.01)  # type: ignore[arg-type]
    with torch.no_grad():
        found, expected = fast_mlp(Qwen2MLP.forward, ours, x), Qwen2MLP.forward(theirs, x)
    assert (
        torch.equal(found, expected) or adjacent
    )  # one wide product may be summed in another order
    close(found, expected, 0.005)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_gradient_of_a_gather_with_repeats(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    source = torch.randint(0, 50, (400,))
    source[source == 7] = 8  # a row that nobody reads
    index = gather_index(source, 50)
    moved = index._replace(**{name: getattr(index, name).cuda() for name in index._fields[:4]})
    x = torch.randn(50, 3, 257, device="cuda", dtype=dtype).requires_grad_()
    out = gather(x, moved)
    assert torch.equal(out, x[source.cuda()])
    up = torch.randn_like(out)
    out.backward(up)
    expected = torch.zeros(50, 3, 257, device="cuda", dtype=torch.float64)
    expected.index_add_(0, source.cuda(), up.double())
    close(
        x.grad, expected, {torch.bfloat16: 0.005, torch.float32: 1e-6, torch.float64: 1e-14}[dtype]
    )  # type: ignore[arg-type]
    again = torch.autograd.grad(gather(x, moved), x, up)[0]
    assert torch.equal(again, x.grad)  # type: ignore[arg-type]


def test_keys_and_values_are_written_from_views() -> None:
    from ascent.models.paged_attention_cuda import write_kv  # triton exists on CUDA machines only

    torch.manual_seed(0)
    merged = torch.randn(5, 6 * 16, device="cuda").bfloat16()
    k, v = merged[:, :32].unflatten(1, (2, 16)), merged[:, 64:].unflatten(1, (2, 16))
    keys, values = (torch.zeros(40, 2, 16, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    slots = torch.tensor([3, 39, 0, 17, 8], device="cuda")
    write_kv(keys, values, slots, k, v)
    for store, new in ((keys, k), (values, v)):
        expected = torch.zeros_like(store)
        expected[slots] = new
        assert torch.equal(store, expected)


@pytest.mark.parametrize("splits", [1, 4, 7, 64])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(12, 2, 128), (6, 6, 48), (14, 2, 64), (4, 2, 8)]
)
def test_rows_that_read_a_prompt_together(
    heads: int, kv_heads: int, size: int, splits: int
) -> None:
    """Groups of 8, 3 and 2 rows and one row alone, against attention over every row's own tokens in float64."""
    from ascent.models.paged_attention import slot_mapping
    from ascent.models.paged_attention_cuda import paged_attention
    from ascent.models.prefix_groups import MEMBERS, PrefixGroups

    torch.manual_seed(0)
    groups, block_size, rows = {0: (128, 8), 8: (64, 3), 11: (256, 2)}, 64, 14
    lengths = torch.tensor(
        [300, 129, 200, 140, 131, 190, 256, 257, 65, 128, 70, 300, 257, 100], dtype=torch.int32
    )
    table, used = torch.zeros(rows, 8, dtype=torch.int32), 1
    members, shared = (
        torch.full((7, MEMBERS), -1, dtype=torch.int32),
        torch.zeros(rows, dtype=torch.int32),
    )
    for index, (first, (length, count)) in enumerate(groups.items()):
        members[index, :count] = torch.arange(first, first + count)
        shared[first : first + count] = length
        for block in range(length // block_size):
            table[first : first + count, block] = used
            used += 1
    for row in range(rows):
        for block in range(int(shared[row]) // block_size, -(-int(lengths[row]) // block_size)):
            table[row, block] = used
            used += 1
    keys, values = (
        torch.randn(used * block_size, kv_heads, size, device="cuda").bfloat16() for _ in range(2)
    )
    q = torch.randn(rows, heads, size, device="cuda").bfloat16()
    newest = slot_mapping(table, lengths - 1, block_size).cuda()
    new_k, new_v = keys[newest], values[newest]
    expected = keys.clone(), values.clone()
    keys[newest] = values[newest] = float("nan")  # until the kernel writes them
    found = paged_attention(
        *(q, keys, values, table.cuda(), lengths.cuda()),
        new_k_BKD=new_k,
        new_v_BKD=new_v,
        slots_B=newest,
        block_size=block_size,
        splits=splits,
        scaling=size**-0.5,
        window=None,
        softcap=None,
        prefixes=PrefixGroups(members.cuda(), shared.cuda()),
    )
    assert torch.equal(keys, expected[0]) and torch.equal(values, expected[1])
    for row in range(rows):
        places = torch.arange(int(lengths[row]))
        slots = (table[row, places // block_size].long() * block_size + places % block_size).cuda()
        k, v = (
            each[slots].double().repeat_interleave(heads // kv_heads, 1) for each in (keys, values)
        )
        weights = (torch.einsum("hd,nhd->hn", q[row].double(), k) * size**-0.5).softmax(1)
        close(found[row], torch.einsum("hn,nhd->hd", weights, v), 0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1,), (2049,), (1024, 1030), (3, 5, 7)])
def test_sums_of_gradients_have_the_bits_of_torch(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    from ascent.update.accumulate_cuda import accumulate

    torch.manual_seed(0)
    total, gradient = torch.randn(shape, device="cuda"), torch.randn(shape, device="cuda").to(dtype)
    expected = total.clone().add_(gradient)
    accumulate(total, gradient)
    assert torch.equal(total, expected)


def test_gradients_that_are_not_contiguous_are_summed_too() -> None:
    from ascent.update.accumulate_cuda import accumulate

    total, gradient = (
        torch.zeros(1030, 1030, device="cuda"),
        torch.randn(1030, 1030, device="cuda").bfloat16(),
    )
    accumulate(total, gradient.mT)
    assert torch.equal(total, gradient.mT.float())
