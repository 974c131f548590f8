"""The native engine on a GPU: paged decode, graphs and drawing against the CPU and against the training forward."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ascent.engines.counter_rng import exponentials
from ascent.engines.native.engine import NativeEngine
from ascent.maths.segments import Segments
from ascent.models.elastic_memory import ElasticBuffers
from ascent.models.flash_attention import FlashAttention
from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.models.tiny import create
from ascent.records import Completion, Message, Prompt, Request, Rollout, Turn
from ascent.rollouts.batch import pack_rollouts
from ascent.update.device import to_device

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

FAMILIES = [
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma",
    "phi",
    "gemma2",
    "gemma3",
    "olmo3",
    "cohere2",
    "phi3",
]
FAMILIES += ["qwen3_moe", "deepseek_v3", "gpt_oss"]


def make(tmp_path: Path, family: str = "llama", dtype: str = "float32") -> LanguageModel:
    folder = create(
        tmp_path / family, family=family, hidden=256, heads=4, key_value_heads=2, seed=0
    )
    return load(folder, dtype=dtype, device="cuda")


def asked(count: int = 24, **changes: object) -> list[Request]:
    generator = np.random.default_rng(0)
    texts = [
        tuple(int(t) for t in generator.integers(3, 250, size=1 + 5 * n)) for n in range(count // 4)
    ]
    return [
        replace(Request(f"p{n // 4}", n % 4, texts[n // 4], 40, 3), **changes) for n in range(count)
    ]  # type: ignore[arg-type]


def run(engine: NativeEngine, requests: list[Request]) -> dict[tuple[str, int], Completion]:
    return {(done.prompt_id, done.sample): done for done in engine.sample(requests)}


def trained(model: LanguageModel, request: Request, done: Completion) -> torch.Tensor:
    tokens = torch.tensor(request.tokens + done.tokens, device="cuda")
    batch = {
        "tokens_T": tokens,
        "positions_T": torch.arange(tokens.numel(), device="cuda"),
        "segments": Segments.from_lengths(torch.tensor([tokens.numel()], device="cuda")),
        "loss_mask_T": torch.ones_like(tokens, dtype=torch.bool),
    }
    with torch.no_grad():
        return model.outputs(batch, frozenset({"logprobs_T"}))["logprobs_T"][len(request.tokens) :]


def test_syncs_may_be_more_frequent_for_a_while(tmp_path: Path) -> None:
    """As a server's are while there are streams, also before the first step."""
    model = make(tmp_path)
    engine = NativeEngine(model, {1}, max_num_seqs=32, max_model_len=256)
    usual, expected = (
        engine.steps_per_sync,
        run(NativeEngine(model, {1}, max_num_seqs=32, max_model_len=256), asked()),
    )
    for steps in (2, usual):
        engine.steps_per_sync = steps
        assert run(engine, asked()) == expected


def test_a_capture_survives_an_engine_before_it_and_another_thread(tmp_path: Path) -> None:
    """Cycles of an engine that is gone hold graphs; to free them, or memory in a thread, would invalidate a capture."""
    model = make(tmp_path)
    expected = run(NativeEngine(model, {1}, max_num_seqs=32, max_model_len=256), asked())
    stop, threshold = threading.Event(), gc.get_threshold()

    def allocate() -> None:
        while not stop.is_set():
            kept = [torch.empty(2**22 + 2**20 * size, device="cuda") for size in range(4)]
            torch.cuda.current_stream().synchronize()
            del kept
            torch.cuda.empty_cache()

    thread = threading.Thread(target=allocate)
    thread.start()
    try:
        for _ in range(4):
            gone: list[Any] = [NativeEngine(model, {1}, max_num_seqs=32, max_model_len=256)]
            assert run(gone[0], asked()) == expected
            gone.append(gone)  # only the collector of cycles frees it
            del gone
            gc.set_threshold(5)  # as soon as it can
    finally:
        gc.set_threshold(*threshold)
        stop.set()
        thread.join()


def test_sampling_with_top_p_survives_a_backward_pass_in_another_thread(tmp_path: Path) -> None:
    """Its kernel is asked for a fixed order by a flag of all threads, with which a sum of floats on CUDA raises."""
    model, stop, passes = make(tmp_path), threading.Event(), 0
    q_THD, k_THD, v_THD = (
        torch.randn(3, 512, 4, 64, device="cuda", dtype=torch.bfloat16).requires_grad_().unbind()
    )
    offsets = torch.tensor([0, 200, 512], device="cuda", dtype=torch.int32)

    def train() -> None:
        nonlocal passes
        while not stop.is_set():
            out_THD = FlashAttention.apply(q_THD, k_THD, v_THD, offsets, offsets, 312, 312, 0.1, -1)
            torch.autograd.grad(out_THD.sum(), q_THD)
            passes += 1

    requests = asked(top_p=0.9)
    expected = run(NativeEngine(model, {1}, max_num_seqs=8, max_model_len=256), requests)
    thread = threading.Thread(target=train)
    thread.start()
    try:
        for _ in range(10):
            assert (
                run(NativeEngine(model, {1}, max_num_seqs=8, max_model_len=256), requests)
                == expected
            )
    finally:
        stop.set()
        thread.join()
    assert passes > 100 and not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("window", [None, 40])
def test_sinks_take_weight_and_give_nothing(splits: int, window: int | None) -> None:
    """The kernel against the formula in float64, for rows whose past is one split or several."""
    from ascent.models.paged_attention_cuda import paged_attention

    generator = torch.Generator().manual_seed(0)
    q, keys, values = (
        torch.randn(shape, generator=generator)
        for shape in ((3, 8, 32), (320, 2, 32), (320, 2, 16))
    )
    sinks, lengths = torch.linspace(-4, 6, 8), torch.tensor([1, 70, 300], dtype=torch.int32)
    table = torch.arange(20, dtype=torch.int32).expand(3, -1).contiguous()
    newest = lengths.long() - 1  # of rows that read the same slots
    out = paged_attention(
        *(each.cuda() for each in (q, keys, values, table, lengths)),
        new_k_BKD=keys[newest].cuda(),
        new_v_BKD=values[newest].cuda(),
        slots_B=newest.cuda(),
        block_size=16,
        splits=splits,
        scaling=0.2,
        window=window,
        softcap=None,
        sinks_H=sinks.cuda(),
    ).cpu()
    for row, length in enumerate(lengths.tolist()):
        begin = max(0, length - window) if window else 0
        for head in range(8):
            k, v = (each[begin:length, head // 4].double() for each in (keys, values))
            scores = torch.cat([k @ q[row, head].double() * 0.2, sinks[head : head + 1].double()])
            wanted = scores.softmax(0)[:-1] @ v
            assert float((out[row, head].double() - wanted).abs().max()) < 5e-3  # products in tf32


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "mean"), [("float32", 2e-3), ("bfloat16", 2e-2)])
def test_recorded_log_probs_are_the_trainers(
    tmp_path: Path, family: str, dtype: str, mean: float
) -> None:
    model = make(tmp_path, family, dtype)
    requests = asked()
    done = run(NativeEngine(model, {1}, max_num_seqs=16, max_model_len=128), requests)
    pairs = [(request, done[request.prompt_id, request.sample]) for request in requests]
    gaps = [
        (torch.tensor(each.logprobs) - trained(model, request, each).cpu()).abs()
        for request, each in pairs
    ]
    assert float(torch.cat(gaps).mean()) < mean


@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
def test_samples_of_a_prompt_read_it_together(tmp_path: Path, family: str) -> None:
    """Long prompts with samples of different lengths, some of one sample: rows move, groups shrink, new ones start."""
    model = make(tmp_path, family, "bfloat16")
    generator = np.random.default_rng(0)
    requests = []
    for prompt, samples in enumerate((8, 8, 1, 8, 3, 8, 8, 20)):
        text = tuple(int(t) for t in generator.integers(3, 250, size=130 + 20 * prompt))
        for sample in range(samples):
            requests.append(Request(f"p{prompt}", sample, text, int(generator.integers(4, 120)), 3))
    engine = NativeEngine(model, {1}, max_num_seqs=48, max_model_len=400)
    done = run(engine, requests)
    assert engine._runner is not None and {
        grouped for *_, grouped in engine._runner._cuda_graphs
    } == {True, False}
    pairs = [(request, done[request.prompt_id, request.sample]) for request in requests]
    gaps = [
        (torch.tensor(each.logprobs) - trained(model, request, each).cpu()).abs()
        for request, each in pairs
    ]
    assert float(torch.cat(gaps).mean()) < 2e-2 and max(float(each.max()) for each in gaps) < 0.3


def test_the_noise_is_the_cpus(tmp_path: Path) -> None:
    from ascent.engines.native.batch_state import SamplingState
    from ascent.engines.native.sampling_triton import exponentials_cuda

    keys = np.array([[1, 2], [2**32 - 1, 7], [123456789, 987654321]], dtype=np.uint32)
    positions = np.array([0, 5, 4000], dtype=np.uint32)
    whole = [torch.from_numpy(keys[:, n].view(np.int32).copy()).cuda() for n in range(2)]
    place = torch.from_numpy(positions.view(np.int32)).cuda()
    params = SamplingState(place, place, *whole, place, place, place, place, place, place[:, None])
    ours, theirs = exponentials(keys, positions, 50000), exponentials_cuda(params, 50000).cpu()
    assert float(((ours - theirs).abs() / ours).max()) < 1e-4


def test_greedy_equals_the_cpu(tmp_path: Path) -> None:
    model = make(tmp_path)
    requests = asked(greedy=True)
    there = run(NativeEngine(model, {1}, max_num_seqs=16, max_model_len=128), requests)
    model.module.to("cpu")
    here = run(NativeEngine(model, {1}, max_num_seqs=16, max_model_len=128), requests)
    same = sum(there[key].tokens == here[key].tokens for key in here)
    assert same >= len(here) - 1  # a tie between two logits may fall either way


@pytest.mark.parametrize(
    "changes", [{"top_p": 0.8}, {"top_k": 5}, {"min_p": 0.3}, {"min_new_tokens": 10}]
)
def test_cut_distributions_report_their_mass(tmp_path: Path, changes: dict[str, float]) -> None:
    done = run(
        NativeEngine(make(tmp_path), {1}, max_num_seqs=16, max_model_len=128), asked(**changes)
    )
    assert all(each.log_mass is not None and max(each.log_mass) <= 1e-5 for each in done.values())


def test_an_update_is_seen_by_the_very_next_token(tmp_path: Path) -> None:
    """The graph reads the weights where they lie; one captured with copies would go on sampling the old model."""
    model = make(tmp_path)
    engine = NativeEngine(model, {1}, max_num_seqs=16, max_model_len=128)
    before = run(engine, asked(greedy=True))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    after = run(engine, asked(greedy=True))
    fresh = run(NativeEngine(model, {1}, max_num_seqs=16, max_model_len=128), asked(greedy=True))
    assert after == fresh
    assert after != before


def test_few_blocks_preempt_and_change_nothing(tmp_path: Path) -> None:
    model = make(tmp_path)
    free = run(NativeEngine(model, {1}, max_num_seqs=16, max_model_len=128), asked())
    engine = NativeEngine(
        model, {1}, max_num_seqs=16, block_size=16, num_blocks=20, max_model_len=128
    )
    tight = run(engine, asked())
    assert engine.stats().preemptions > 0
    assert engine.stats().used_blocks == 0
    same = sum(free[key].tokens == tight[key].tokens for key in free)
    assert same >= 0.9 * len(
        free
    )  # float32 on a GPU rounds by batch size, so a rare draw may differ


def test_the_kv_cache_has_memory_only_while_something_runs_and_graphs_survive(
    tmp_path: Path,
) -> None:
    model = make(tmp_path)
    engine = NativeEngine(model, {1}, max_num_seqs=16, max_model_len=512)
    first = run(engine, asked())
    runner = engine._runner
    assert runner is not None and runner.kv_cache.memory is not None
    graphs, peak = dict(runner._cuda_graphs), engine.stats().kv_cache_bytes
    assert graphs and peak > 0 and runner.kv_cache.bytes == 0
    engine.add(asked()[0])
    engine.step()
    assert runner.kv_cache.bytes > 0
    engine._abort_all()
    assert runner.kv_cache.bytes == 0 and repr(runner.kv_cache)  # an error report may print it
    assert run(engine, asked()) == first
    assert engine._runner is runner and graphs.items() <= runner._cuda_graphs.items()
    assert engine.stats().kv_cache_bytes == peak


def test_blocks_without_memory_get_it_when_they_are_used() -> None:
    memory = ElasticBuffers(100_000, [256, 1024], torch.device("cuda"))
    narrow, wide = (
        memory.tensor(0, (100_000, 128), torch.bfloat16),
        memory.tensor(1, (100_000, 256), torch.float32),
    )
    address, before = wide.data_ptr(), memory.mapped_bytes
    memory.grow(60_000)
    narrow[:60_000], wide[:60_000] = 1, 2
    assert (
        memory.mapped_bytes > before
        and float(narrow[59_999].sum() + wide[59_999].sum()) == 128 + 512
    )
    memory.shrink()
    assert memory.mapped_bytes == 0
    memory.grow(100_000)
    wide.fill_(3)
    assert wide.data_ptr() == address and float(wide[-1, -1]) == 3 and memory.mapped_rows == 100_000


def test_mapped_memory_is_memory_of_the_gpu() -> None:
    memory, free = ElasticBuffers(2**24, [1024], torch.device("cuda")), torch.cuda.mem_get_info()[0]
    memory.grow(2**24)  # 16 GiB: more than other processes of a test take or give back meanwhile
    assert free - torch.cuda.mem_get_info()[0] > 8 * 2**30


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_routes_are_those_of_the_trainer(tmp_path: Path, dtype: str) -> None:
    """In bfloat16 a step is a graph. A few choices tie to the last bit; with all of them replayed, log-probs agree."""
    folder = create(tmp_path / "moe", family="qwen3_moe", hidden=128, initializer_range=0.1, seed=0)
    model = load(folder, dtype=dtype, device="cuda", routing_replay=True)
    requests = asked()
    done = run(NativeEngine(model, {1}, max_num_seqs=16, max_model_len=128), requests)
    prompt, answers = (
        (Message("user", "?"),),
        [(each, done[each.prompt_id, each.sample]) for each in requests],
    )
    rollouts = [
        Rollout(Prompt(q.prompt_id, prompt), q.sample, (Turn(q.tokens, a),)) for q, a in answers
    ]
    batch = to_device(pack_rollouts(rollouts), torch.device("cuda"))
    with torch.no_grad():
        found = model.outputs(batch, frozenset({"logprobs_T"}))
    changed, given = found["policy/routes_changed_frac"].tolist()
    assert 0 <= changed < 0.05 * given
    gap_T = (found["logprobs_T"] - batch["sampler_logprobs_T"])[batch["loss_mask_T"]].abs()
    assert float(gap_T.mean()) < (2e-2 if dtype == "bfloat16" else 2e-3)
