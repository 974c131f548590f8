"""The kernels of exact arithmetic one by one on a GPU (H100 or H200): are their bits equal, and what do they cost?

    python bench/exact_kernels.py [--seconds 165]

First the bits: a linear layer over tiles and rows, by Triton and by cuBLAS; attention packed, decoded from a cache and
with shared prompts; the head that samples and the head that trains. Then microseconds, in the shapes of Qwen2.5-1.5B
and 0.5B: the head, attention against the kernels of fast arithmetic, every tile of a linear layer against cuBLAS, which
exact arithmetic uses where the bits are equal. Calls are repeated in a CUDA graph, so caches are warm and launches cost
nothing. A measurement that fails is printed, and the next one follows; none begins after `--seconds`.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

DEVICE = "cuda"
VOCAB, HIDDEN = 151936, 1536
HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE = 12, 2, 128, 64  # of the 1.5B, and of the engine's cache
ATTENTIONS = ((12, 2, 128), (14, 2, 64))
LENGTHS = (700, 130, 64, 65, 1)
LINEARS = ((1536, 1536), (1536, 8960), (896, 4864))
LAYERS = {
    "1.5B": ((2048, 1536), (1536, 1536), (17920, 1536), (1536, 8960)),
    "0.5B": ((1152, 896), (9728, 896), (896, 4864)),
}
ROWS = (512, 64, 16384, 1, 256, 300, 16)  # of linear layers; the most important first


class Section(NamedTuple):
    title: str
    measure: Callable[..., str]
    cases: Iterable[tuple[Any, ...]]


def sections() -> list[Section]:
    layers = [
        (size, rows, *shape)
        for size, rows in itertools.product(LAYERS, ROWS)
        for shape in LAYERS[size]
    ]
    blocks = [(*shape, block_size) for shape in ATTENTIONS for block_size in (16, 64, 128)]
    batches = [(8,), (64,), (512,)]
    return [
        Section("bits of linear layers; relative error to float64", linear_bits, LINEARS),
        Section(
            "bits of packed attention; largest difference to flash attention",
            packed_bits,
            ATTENTIONS,
        ),
        Section(
            "bits of decode attention, alone and with a shared prompt, to packed",
            decode_bits,
            blocks,
        ),
        Section("bits of the gradient of attention, twice", gradient_bits, ATTENTIONS),
        Section(
            "bits of the head, sampled to trained; largest difference to float32",
            head_bits,
            [(512,)],
        ),
        Section(
            "us of the head: product and sampling; training: product and reduction",
            head_time,
            batches,
        ),
        Section(
            "us of decode attention, 450 tokens: exact | fast; with a shared prompt: both",
            decode_time,
            batches,
        ),
        Section(
            "us of packed attention, rows of a tile x stages: exact | flash attention",
            packed_time,
            [(23, 711)],
        ),
        Section(
            "us of linear layers: cuBLAS | exact, ratio | Triton, its tile | the best tile",
            linear_time,
            layers,
        ),
    ]


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device=DEVICE) * scale).bfloat16()


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def verdict(checks: dict[str, bool]) -> str:
    wrong = [name for name, equal in checks.items() if not equal]
    return f"NOT EQUAL: {', '.join(wrong)}" if wrong else f"{len(checks)} of {len(checks)} equal"


def microseconds(call: Callable[[], Any]) -> float:
    from triton.testing import do_bench, do_bench_cudagraph

    try:
        return 1e3 * do_bench_cudagraph(call, rep=15)
    except Exception as problem:
        found = 1e3 * do_bench(call, warmup=5, rep=15)
        print(f"without a CUDA graph, from a cold cache ({reason(problem)}):", flush=True)
        return found


def reason(problem: Exception) -> str:
    return f"{type(problem).__name__}: {str(problem).strip().partition(chr(10))[0][:200]}"


def linear_bits(columns: int, depth: int) -> str:
    from ascent.models import exact_linear_cuda as linear

    x, weight, bias = normal(600, depth), normal(columns, depth, scale=depth**-0.5), normal(columns)
    found = linear.forward(x, weight, bias)
    checks = {
        f"{rows} rows": torch.equal(linear.forward(x[:rows], weight, bias), found[:rows])
        for rows in (1, 2, 16, 64, 65, 256, 257, 512)
    }
    for tile in linear.TILES:
        again = linear.triton_product(x, weight, bias, torch.empty_like(found), tile)
        checks[f"tile {tile.rows} x {tile.columns}"] = torch.equal(again, found)
    expected = F.linear(x.double(), weight.double(), bias.double())
    errors = [
        float((each.double() - expected).norm() / expected.norm())
        for each in (found, F.linear(x, weight, bias))
    ]
    return f"N {columns} K {depth}: {verdict(checks)}; error {errors[0]:.2e}, of cuBLAS {errors[1]:.2e}"


def packed_inputs(
    lengths: Iterable[int], heads: int, kv_heads: int, size: int
) -> tuple[Tensor, ...]:
    """Queries, keys, values and the offsets of the sequences."""
    offsets = [0, *itertools.accumulate(lengths)]
    return *(normal(offsets[-1], each, size) for each in (heads, kv_heads, kv_heads)), int32(
        *offsets
    )


def flash(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, longest: int) -> Any:
    return torch.ops.aten._flash_attention_forward(
        *(q, k, v, offsets, offsets, longest, longest, 0.0, True, False),
        scale=q.shape[-1] ** -0.5,
        window_size_left=-1,
        window_size_right=0,
    )


def packed_bits(heads: int, kv_heads: int, size: int) -> str:
    from ascent.models import exact_attention_cuda as attention

    q, k, v, offsets = packed_inputs(LENGTHS, heads, kv_heads, size)
    forward = partial(attention.packed_forward, q, k, v, offsets, offsets, max(LENGTHS), size**-0.5)
    out, lse = forward()
    with patch.multiple(attention, ROWS=128):
        checks = {"128 rows": torch.equal(forward()[0], out)}
    expected, expected_lse = flash(q, k, v, offsets, max(LENGTHS))[:2]
    gaps = (
        float((out.float() - expected.float()).abs().max()),
        float((lse - expected_lse).abs().max()),
    )
    return f"heads {heads} of {size}: {verdict(checks)}; output {gaps[0]:.1e}, log-sum-exp {gaps[1]:.1e}"


def decode_bits(heads: int, kv_heads: int, size: int, block_size: int) -> str:
    """Some tokens of the first sequence as rows whose cache holds it in shuffled blocks, with NaN in unused slots."""
    from ascent.models import exact_attention_cuda as attention
    from ascent.models.exact_decode_cuda import decode_attention
    from ascent.models.prefix_groups import MEMBERS, PrefixGroups

    q, k, v, offsets = packed_inputs(LENGTHS, heads, kv_heads, size)
    length, scaling = LENGTHS[0], size**-0.5
    expected = attention.packed_forward(q, k, v, offsets, offsets, max(LENGTHS), scaling)[0]
    num_blocks = -(-length // block_size)
    blocks = torch.randperm(num_blocks, device=DEVICE) + 1
    index = torch.arange(length, device=DEVICE)
    slots = blocks[index // block_size] * block_size + index % block_size
    shape = ((num_blocks + 1) * block_size, kv_heads, size)
    keys, values = (
        torch.full(shape, torch.nan, dtype=torch.bfloat16, device=DEVICE) for _ in range(2)
    )
    keys[slots], values[slots] = k[:length], v[:length]
    rows = torch.tensor([699, 640, 639, 400, 128], device=DEVICE)
    table = blocks.int().expand(len(rows), -1).contiguous()
    decode = partial(
        decode_attention,
        q[rows],
        keys,
        values,
        table,
        (rows + 1).int(),
        new_k_BKD=k[rows],
        new_v_BKD=v[rows],
        slots_B=slots[rows],
        block_size=block_size,
        scaling=scaling,
    )
    members = int32(*range(len(rows)), *[-1] * (2 * MEMBERS - len(rows))).view(2, MEMBERS)
    prefixes = PrefixGroups(members, int32(*[128] * len(rows)))
    checks = {
        "alone": torch.equal(decode(), expected[rows]),
        "shared prompt": torch.equal(decode(prefixes=prefixes), expected[rows]),
    }
    return f"heads {heads} of {size}, blocks of {block_size}: {verdict(checks)}"


def gradient_bits(heads: int, kv_heads: int, size: int) -> str:
    from ascent.models import exact_attention_cuda as attention

    q, k, v, offsets = packed_inputs(LENGTHS, heads, kv_heads, size)
    longest = max(LENGTHS)

    def gradients() -> tuple[Tensor, ...]:
        inputs = [each.clone().requires_grad_() for each in (q, k, v)]
        out = attention.packed_attention(
            *inputs, offsets, offsets, max_queries=longest, max_len=longest, scaling=size**-0.5
        )
        return torch.autograd.grad(out.float().square().sum(), inputs)

    pairs = zip("qkv", gradients(), gradients(), strict=True)
    return f"heads {heads} of {size}: {verdict({name: torch.equal(one, two) for name, one, two in pairs})}"


def sampling_state(rows: int) -> Any:
    from ascent.engines.native.batch_state import SamplingState

    index = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    ones, none = torch.ones(rows, device=DEVICE), torch.zeros_like(index)
    return SamplingState(
        *(ones, none, index * 7919 + 1, index * 104729 + 3, index),
        min_output_len_B=none,
        top_k_B=none,
        top_p_B=ones,
        min_p_B=torch.zeros_like(ones),
        stop_ids_BS=torch.full_like(index, -1)[:, None],
    )


def head_inputs(rows: int) -> tuple[Tensor, Any]:
    """Hidden states and the head."""
    from ascent.models.head import Head
    from ascent.models.layer_patching import EXACT

    return normal(rows, HIDDEN), Head(normal(VOCAB, HIDDEN, scale=HIDDEN**-0.5), kernels=EXACT)


def head_config(head: Any) -> Any:
    from ascent.models.head import TileConfig

    return TileConfig(
        1.0, None, 1.0, entropy=True, collision=False, tile=(0, 0), kernels=head.kernels
    )


def head_bits(rows: int) -> str:
    from ascent.engines.native.sampling_triton import sample_full_vocab_cuda
    from ascent.models import exact_head_cuda as exact
    from ascent.models.head import head_logits

    hidden, head = head_inputs(rows)
    tokens, logprobs = sample_full_vocab_cuda(head_logits(hidden, head), sampling_state(rows))
    tokens, ones = tokens.long(), torch.ones(rows, device=DEVICE)
    lse, _, logits, _ = exact.reduce_logits(hidden, head.weight_VD, None, tokens, head_config(head))
    alone = exact.token_logprobs(hidden[5:6], head, tokens[5:6], ones[:1])
    checks = {
        "trained": torch.equal(logits - lse, logprobs),
        "one row": torch.equal(alone, logprobs[5:6]),
    }
    wide = (
        (hidden.float() @ head.weight_VD.float().T).log_softmax(1).gather(1, tokens[:, None])[:, 0]
    )
    return f"{rows} rows: {verdict(checks)}; log-probs {float((logprobs - wide).abs().max()):.1e}"


def head_time(rows: int) -> str:
    from ascent.engines.native.sampling_triton import sample_full_vocab_cuda
    from ascent.models import exact_head_cuda as exact
    from ascent.models import head_cuda
    from ascent.models.head import head_logits

    hidden, head = head_inputs(rows)
    state, config, logits = sampling_state(rows), head_config(head), head_logits(hidden, head)
    inputs = (hidden, head.weight_VD, None, state.position_B.long(), config)
    product, sampling = (
        microseconds(lambda: head_logits(hidden, head)),
        microseconds(lambda: sample_full_vocab_cuda(logits, state)),
    )
    training = [
        microseconds(partial(each, *inputs))
        for each in (exact.reduce_logits, head_cuda.reduce_logits)
    ]
    return f"{rows:5} rows {product:8.1f} + {sampling:8.1f}; training {training[0]:8.1f}, fast {training[1]:8.1f}"


def decode_time(rows: int) -> str:
    from ascent.engines.native.runner import PROGRAMS
    from ascent.models import exact_decode_cuda as attention
    from ascent.models.paged_attention_cuda import paged_attention
    from ascent.models.prefix_groups import MEMBERS, PrefixGroups

    length, prefix = 450, 192
    per_row = -(-length // BLOCK_SIZE)
    keys, values = (
        normal((rows * per_row + 1) * BLOCK_SIZE, KV_HEADS, HEAD_SIZE) for _ in range(2)
    )
    table = torch.arange(1, rows * per_row + 1, dtype=torch.int32, device=DEVICE).view(
        rows, per_row
    )
    members = torch.arange(rows, dtype=torch.int32, device=DEVICE).view(-1, MEMBERS)
    shared = table.clone()
    shared[:, : prefix // BLOCK_SIZE] = table[
        members[:, 0].repeat_interleave(MEMBERS).long(), : prefix // BLOCK_SIZE
    ]
    prefixes = PrefixGroups(members, int32(*[prefix] * rows))
    q, lengths, scaling = normal(rows, HEADS, HEAD_SIZE), int32(*[length] * rows), HEAD_SIZE**-0.5
    new = {"new_k_BKD": keys[:rows].clone(), "new_v_BKD": values[:rows].clone()}
    slots = table[:, -1].long() * BLOCK_SIZE + (length - 1) % BLOCK_SIZE
    splits = max(1, min(64, PROGRAMS // (rows * KV_HEADS)))  # as the engine splits

    def exact(blocks: Tensor, groups: Any = None) -> Tensor:
        options = {"block_size": BLOCK_SIZE, "scaling": scaling, "prefixes": groups}
        return attention.decode_attention(
            q, keys, values, blocks, lengths, **new, slots_B=slots, **options
        )

    def fast(blocks: Tensor, groups: Any = None) -> Tensor:
        options = {
            "block_size": BLOCK_SIZE,
            "splits": splits,
            "scaling": scaling,
            "window": None,
            "softcap": None,
        }
        return paged_attention(
            q, keys, values, blocks, lengths, **new, slots_B=slots, **options, prefixes=groups
        )

    stages = []
    for each in (
        3,
        5,
        7,
    ):  # every second one is another buffer: the load of a block's number is a stage, too
        with patch.multiple(attention, STAGES=each):
            stages.append(f"{each} stages {microseconds(partial(exact, table)):.1f}")
    alone = microseconds(partial(fast, table))
    grouped = [microseconds(partial(each, shared, prefixes)) for each in (exact, fast)]
    return f"{rows:5} rows {', '.join(stages)} | {alone:.1f}; shared {grouped[0]:.1f} | {grouped[1]:.1f}"


def packed_time(sequences: int, length: int) -> str:
    from ascent.models import exact_attention_cuda as attention

    q, k, v, offsets = packed_inputs([length] * sequences, HEADS, KV_HEADS, HEAD_SIZE)
    forward = partial(attention.packed_forward, q, k, v, offsets, offsets, length, HEAD_SIZE**-0.5)
    found = []
    for rows, stages in itertools.product((64, 128), (2, 3)):
        with patch.multiple(attention, ROWS=rows, STAGES=stages):
            found.append(f"{rows} x {stages} {microseconds(forward):.0f}")
    stock = microseconds(partial(flash, q, k, v, offsets, length))
    return f"{sequences} x {length} tokens: {', '.join(found)} | {stock:.0f}"


def linear_time(size: str, rows: int, columns: int, depth: int) -> str:
    from ascent.models import exact_linear_cuda as linear

    x, weight = normal(rows, depth), normal(columns, depth, scale=depth**-0.5)
    out = torch.empty(rows, columns, dtype=torch.bfloat16, device=DEVICE)
    stock = microseconds(lambda: F.linear(x, weight))
    linear.forward(x, weight)  # compares
    exact = microseconds(lambda: linear.forward(x, weight))
    ours = microseconds(lambda: linear.triton_product(x, weight, None, out))
    chosen = linear.choose_tile(rows, columns)
    found, failed = {}, ""
    for tile in linear.TILES if rows <= 1024 else ():
        name = f"{tile.rows} x {tile.columns}"
        try:
            found[name] = microseconds(partial(linear.triton_product, x, weight, None, out, tile))
        except Exception as problem:
            failed += f"; {name} failed ({reason(problem)})"
    every = ", ".join(f"{name} {taken:.1f}" for name, taken in found.items())
    own = f"{ours:8.1f} {chosen.rows} x {chosen.columns}"
    shape = f"{size} M {rows:5} N {columns:5} K {depth:4}"
    return f"{shape} {stock:8.1f} | {exact:8.1f} {exact / stock:.2f} | {own} | {every}{failed}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=165, help="begin no measurement after this time"
    )
    given = parser.parse_args()
    from ascent.models.exact import device_problem

    if not torch.cuda.is_available():
        raise SystemExit("bench/exact_kernels.py needs an H100 or H200: torch finds no CUDA GPU")
    if problem := device_problem(torch.device(DEVICE)):
        raise SystemExit(f"bench/exact_kernels.py needs an H100 or H200: {problem}")
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    measure_all(time.perf_counter() + given.seconds)


def measure_all(end: float) -> None:
    for title, measure, cases in sections():
        print(f"\n{title}", flush=True)
        for case in cases:
            if time.perf_counter() > end:
                print("the time is up")
                return
            torch.manual_seed(0)
            try:
                print(measure(*case), flush=True)
            except Exception as problem:
                print(f"{case} failed: {reason(problem)}", flush=True)


if __name__ == "__main__":
    main()
