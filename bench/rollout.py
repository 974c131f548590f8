"""Sampling speed: the native engine against transformers' generate, in one run, in turns.

    python bench/rollout.py cpu [--smollm2 FOLDER] [--write]
    python bench/rollout.py gpu [--trl] [--write]
    python bench/rollout.py gpu --max-num-seqs 512 1024 2048 [--write]

On a CPU: a fixed ragged mix (256 requests in groups of 8, log-normal lengths with sigma 0.8, capped at 4 times the
mean, 64 slots), and the same requests at equal lengths. Lengths are token budgets; nothing else stops. The quick-start
model gets prompts of 12 to 24 tokens and a mean of 24 new ones; SmolLM2-135M 128 requests, prompts of 16 to 32 tokens,
a mean of 8 new ones, one repetition (two minutes on two idle cores). generate runs batches of 64. In the ragged mix it
is measured twice: sorted by the lengths of the prompts, as a user could, against ours in the order given; and sorted by
the lengths of the completions, which no user knows, against ours beginning with the largest budgets, which are those
lengths. It returns no log-probabilities; ours always does.

On a GPU (eight minutes): random weights in the shapes of Qwen2.5 and Qwen3, bfloat16, 200 + 512 tokens and 1,024 + 256
alone and in groups of 8 that share their prompt, beside the time in which the memory alone could be read (weights and
keys/values at 4.3 TB/s), beside TRL's GRPO generation where trl is installed; and how far the recorded
log-probabilities are from the training forward's. With --max-num-seqs only the ragged mix (4,096 requests, a mean of
128 new tokens) by the number of sequences that run at once, in turns, after one that is not counted.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import math
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from ascent.engines.native.engine import NativeEngine
from ascent.maths.segments import Segments
from ascent.models import layer_patching
from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.models.tiny import create
from ascent.records import Completion, Request

HERE = Path(__file__).resolve().parent
REPETITIONS, GPU_REPETITIONS, REQUESTS, GROUP, SLOTS, SIGMA, CAP = 3, 2, 256, 8, 64, 0.8, 4
SMOLLM2 = (32, 8, 128, 1)  # prompt, mean of new tokens, requests, repetitions
MIX = (160, 128, 4096)  # prompt, mean of new tokens, requests of the ragged mix on a GPU
BANDWIDTH = 4.3e12
NEVER = frozenset({-1})
# on a GPU: batch, samples of a prompt, prompt tokens, new tokens
SETTINGS = [(512, 1, 200, 512), (128, 1, 200, 512), (16, 1, 200, 512), (1, 1, 200, 512)]
SETTINGS += [(512, 8, 1024, 256), (512, 1, 1024, 256)]
FEW = [(512, 1, 200, 512), (1, 1, 200, 512), (512, 8, 1024, 256)]
SHAPES: dict[str, Any] = {
    "qwen2.5-0.5b": Qwen2Config(
        hidden_size=896,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        intermediate_size=4864,
        vocab_size=151936,
        tie_word_embeddings=True,
    ),
    "qwen2.5-1.5b": Qwen2Config(
        hidden_size=1536,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        intermediate_size=8960,
        vocab_size=151936,
        tie_word_embeddings=True,
    ),
    "qwen3-0.6b": Qwen3Config(
        hidden_size=1024,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        intermediate_size=3072,
        head_dim=128,
        vocab_size=151936,
        tie_word_embeddings=True,
    ),
    "smollm2-135m": LlamaConfig(
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        vocab_size=49152,
        tie_word_embeddings=True,
    ),
}


def ragged(mean: int, count: int = REQUESTS, seed: int = 0) -> list[int]:
    """Log-normal lengths around `mean`, at least 1, at most CAP times it."""
    rng = random.Random(seed)
    middle = math.log(mean) - SIGMA**2 / 2
    return [max(1, min(CAP * mean, round(rng.lognormvariate(middle, SIGMA)))) for _ in range(count)]


def prompts(
    count: int, length: int, vocabulary: int, seed: int = 0, spread: bool = True
) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    sizes = [rng.randint(length // 2, length) if spread else length for _ in range(count)]
    return [tuple(rng.randrange(3, vocabulary) for _ in range(size)) for size in sizes]


def requests(texts: list[tuple[int, ...]], lengths: list[int], group: int) -> list[Request]:
    return [
        Request(f"p{n // group}", n % group, texts[n // group], size, seed=0)
        for n, size in enumerate(lengths)
    ]


def in_order(engine: NativeEngine, asked: list[Request]) -> Iterator[Completion]:
    """As if all budgets were equal: `sample` would begin with the largest."""
    for request in asked:
        engine.add(request)
    left = len(asked)
    while left:
        done = engine.step()
        left -= len(done)
        yield from done


def ours(engine: NativeEngine, asked: list[Request], *, knows: bool = True) -> float:
    start = time.perf_counter()
    tokens = sum(
        len(done.tokens) for done in (engine.sample(asked) if knows else in_order(engine, asked))
    )
    _wait()
    assert tokens == sum(request.max_new_tokens for request in asked)
    return time.perf_counter() - start


@torch.no_grad()
def generate(
    module: Any, asked: list[Request], batch: int, sort: Callable[[Request], int] | None
) -> float:
    """transformers' own sampling, left-padded, until the longest of a batch is done; oneDNN as torch has it."""
    torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
    order = sorted(asked, key=sort) if sort else asked
    device = module.device
    start = time.perf_counter()
    for place in range(0, len(order), batch):
        rows = order[place : place + batch]
        width = max(len(request.tokens) for request in rows)
        ids = torch.tensor(
            [[0] * (width - len(r.tokens)) + list(r.tokens) for r in rows], device=device
        )
        seen = torch.tensor(
            [[0] * (width - len(r.tokens)) + [1] * len(r.tokens) for r in rows], device=device
        )
        most = max(request.max_new_tokens for request in rows)
        module.generate(
            ids,
            attention_mask=seen,
            max_new_tokens=most,
            min_new_tokens=most,
            do_sample=True,
            top_k=0,
            pad_token_id=0,
        )
    _wait()
    seconds = time.perf_counter() - start
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    return seconds


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


SORTS: dict[str, Callable[[Request], int]] = {
    "generate by prompt": lambda request: len(request.tokens),
    "generate by future": lambda request: request.max_new_tokens,
}


def turns(ways: dict[str, Callable[[], float]], repetitions: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repetitions):
        for name, way in ways.items():
            times[name].append(way())
    return times


def compare_on_cpu(
    name: str, folder: Path, prompt: int, mean: int, count: int, repetitions: int
) -> list[dict[str, Any]]:
    model = load(folder)
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    vocabulary = min(1000, model.module.config.vocab_size)
    texts = prompts(count // GROUP, prompt, vocabulary)
    rows = []
    for mix, lengths in (("ragged", ragged(mean, count)), ("equal", [mean] * count)):
        asked = requests(texts, lengths, GROUP)
        engine = NativeEngine(model, NEVER, max_num_seqs=SLOTS, max_model_len=prompt + CAP * mean)
        ways: dict[str, Callable[[], float]] = {}
        for knows, (way, sort) in enumerate(
            SORTS.items() if mix == "ragged" else {"generate": None}.items()
        ):
            ways[f"native against {way}"] = lambda e=engine, a=asked, k=knows: ours(
                e, a, knows=bool(k)
            )  # type: ignore[misc]
            ways[way] = lambda asked=asked, sort=sort: generate(stock, asked, SLOTS, sort)  # type: ignore[misc]
        times = turns(ways, repetitions)
        middle = {way: statistics.median(each) for way, each in times.items()}
        faster = {
            way: middle[way] / middle[f"native against {way}"]
            for way in middle
            if not way.startswith("native")
        }
        best = min(middle[way] for way in middle if way.startswith("native"))
        row = {
            "model": name,
            "mix": mix,
            "requests": count,
            "tokens": sum(lengths),
            "seconds": times,
            "ours_tokens_per_second": sum(lengths) / best,
            "times_faster": faster,
            "threads": torch.get_num_threads(),
            "kept": engine.stats().useful_frac,
        }
        rows.append(row)
        ratios = ", ".join(f"{ratio:.2f}x {way}" for way, ratio in faster.items())
        print(
            f"{name:12} {mix:7} {row['ours_tokens_per_second']:9.0f} tokens/s; {ratios}", flush=True
        )
    return rows


def on_gpu(shape: str) -> LanguageModel:
    """Random weights in a known shape. They never stop by themselves, so every length is what is asked for."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        module = AutoModelForCausalLM.from_config(
            copy.deepcopy(SHAPES[shape]), dtype=torch.bfloat16
        ).eval()
    layer_patching.patch_layers(module)
    return LanguageModel(module, None)  # type: ignore[arg-type]


def floor_seconds(model: LanguageModel, batch: int, prompt: int, new: int) -> float:
    """Weights once a step and every row's keys and values, at the memory's speed."""
    config = model.module.config
    weights = sum(each.numel() for each in model.module.parameters()) * 2
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_token = config.num_hidden_layers * config.num_key_value_heads * head * 2 * 2
    return new * (weights + batch * (prompt + new / 2) * per_token) / BANDWIDTH


def measure_on_gpu(
    shape: str, settings: list[tuple[int, int, int, int]], repetitions: int
) -> list[dict[str, Any]]:
    model, rows = on_gpu(shape), []
    for batch, group, prompt, new in settings:
        engine = NativeEngine(model, NEVER, max_num_seqs=batch, max_model_len=prompt + new)
        asked = requests(
            prompts(batch // group, prompt, 100000, spread=False), [new] * batch, group
        )
        ours(
            engine, requests(prompts(batch // group, 16, 1000), [16] * batch, group)
        )  # captures the graph
        first = requests(prompts(batch // group, prompt, 100000, spread=False), [1] * batch, group)
        ours(engine, first)  # the prefill's own first time
        prefill = statistics.median(ours(engine, first) for _ in range(repetitions))
        seconds = [ours(engine, asked) for _ in range(repetitions)]
        best = statistics.median(seconds)
        step = (best - prefill) / (new - 1)
        stats, floor = engine.stats(), floor_seconds(model, batch, prompt, new)
        rows.append(
            {
                "model": shape,
                "batch": batch,
                "group": group,
                "prompt": prompt,
                "new": new,
                "seconds": seconds,
                "tokens_per_second": batch * new / best,
                "prefill_seconds": prefill,
                "milliseconds_a_step": step * 1e3,
                "floor_seconds": floor,
                "shared_pages": stats.peak_shared_blocks,
                "used_pages": stats.peak_used_blocks,
                "pool_gib": stats.kv_cache_bytes / 2**30,
            }
        )
        speed = f"{batch * new / best:.0f} tokens/s, {best / floor:.1f}x the floor"
        print(f"{shape} batch {batch} group {group} {prompt}+{new}: {speed};", end=" ")
        print(f"prefill {prefill:.2f} s, then {step * 1e3:.2f} ms a step;", end=" ")
        print(
            f"{stats.peak_used_blocks} blocks used, {stats.peak_shared_blocks} of them shared",
            flush=True,
        )
        engine.close()
        del engine
        torch.cuda.empty_cache()
    return rows


def measure_mix(shape: str, sizes: list[int], repetitions: int) -> list[dict[str, Any]]:
    """The ragged mix, by `max_num_seqs`: requests wait and rows are refilled, as in a test or a large step."""
    model, (prompt, mean, count) = on_gpu(shape), MIX
    asked = requests(prompts(count // GROUP, prompt, 40000), ragged(mean, count), GROUP)
    limits = {"max_model_len": prompt + CAP * mean}
    engines = {size: NativeEngine(model, NEVER, max_num_seqs=size, **limits) for size in sizes}
    ways = {
        str(size): lambda engine=engine: ours(engine, asked, knows=False)
        for size, engine in engines.items()
    }
    times = turns(ways, repetitions + 1)  # type: ignore[arg-type]
    tokens, rows = sum(request.max_new_tokens for request in asked), []
    for size, engine in engines.items():
        first, *seconds = times[str(size)]
        row = {
            "model": shape,
            "mix": "ragged",
            "max_num_seqs": size,
            "requests": count,
            "tokens": tokens,
            "first_seconds": first,
            "seconds": seconds,
            "tokens_per_second": tokens / statistics.median(seconds),
            "kept": engine.stats().useful_frac,
            "pool_gib": engine.stats().kv_cache_bytes / 2**30,
        }
        rows.append(row)
        print(
            f"{shape} {size} at once: {row['tokens_per_second']:.0f} tokens/s, first {first:.1f} s",
            flush=True,
        )
    return rows


def against_trl(shape: str, ours_per_second: float) -> dict[str, Any]:
    """TRL's own generation of the same work: batch 512, 200 + 512 tokens, once to warm up and once to measure.

    Its continuous batching is left out: in trl 1.16 with transformers 5.17 it did not return the tokens asked for.
    """
    sys.path.insert(0, str(HERE / "peers"))
    from rollout_trl import trl_seconds

    torch.manual_seed(0)
    with torch.device("cuda"):
        module = AutoModelForCausalLM.from_config(
            copy.deepcopy(SHAPES[shape]), dtype=torch.bfloat16
        )
    texts = [list(each) for each in prompts(512, 200, 100000, spread=False)]
    seconds = trl_seconds(module, texts, 512, 2)
    theirs = 512 * 512 / min(seconds)
    print(f"{shape} TRL {theirs:.0f} tokens/s; ours {ours_per_second / theirs:.2f}x", flush=True)
    torch.cuda.empty_cache()
    return {
        "model": shape,
        "trl_seconds": seconds,
        "trl_tokens_per_second": theirs,
        "times_faster": ours_per_second / theirs,
    }


def distance(shape: str) -> dict[str, Any]:
    """Recorded log-probabilities against the packed training forward of the same tokens, in bfloat16."""
    model = on_gpu(shape)
    engine = NativeEngine(model, NEVER, max_num_seqs=64, max_model_len=400)
    asked = requests(prompts(64, 200, 100000), [128] * 64, 1)
    gaps = []
    for done in engine.sample(asked):
        request = asked[int(done.prompt_id[1:])]
        tokens = torch.tensor(request.tokens + done.tokens, device="cuda")
        batch = {
            "tokens_T": tokens,
            "positions_T": torch.arange(len(tokens), device="cuda"),
            "segments": Segments.from_lengths(torch.tensor([len(tokens)], device="cuda")),
            "loss_mask_T": torch.ones_like(tokens, dtype=torch.bool),
        }
        with torch.no_grad():
            loss_mask_T = model.outputs(batch, frozenset({"logprobs_T"}))["logprobs_T"][
                len(request.tokens) :
            ]
        gaps.append(loss_mask_T.cpu() - torch.tensor(done.logprobs))
    gap_T = torch.cat(gaps).double()
    found = {
        "model": shape,
        "tokens": gap_T.numel(),
        "mean": float(gap_T.abs().mean()),
        "largest": float(gap_T.abs().max()),
        "k3": float((gap_T.exp() - 1 - gap_T).mean()),
    }
    print(
        f"{shape} log-probs: mean {found['mean']:.4f}, largest {found['largest']:.3f}, k3 {found['k3']:.2e}",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("where", choices=("cpu", "gpu"))
    parser.add_argument("--smollm2", type=Path, help="folder of SmolLM2-135M-Instruct in float32")
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--repetitions", type=int, help="3 on a CPU (SmolLM2: 1), 2 on a GPU")
    parser.add_argument("--trl", action="store_true", help="measure TRL's generation too (gpu)")
    parser.add_argument(
        "--max-num-seqs", type=int, nargs="*", help="only the ragged mix, by these (gpu)"
    )
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.where == "cpu":
        with tempfile.TemporaryDirectory() as folder:
            tiny = create(Path(folder) / "tiny", hidden=64, layers=3, heads=4, key_value_heads=4)
            rows += compare_on_cpu(
                "quick start", tiny, 24, 24, REQUESTS, options.repetitions or REPETITIONS
            )
        if options.smollm2:
            *lengths, repetitions = SMOLLM2
            rows += compare_on_cpu(
                "smollm2", options.smollm2, *lengths, options.repetitions or repetitions
            )
        if options.write:
            write("cpu", rows)
    elif options.max_num_seqs:
        for shape in options.shapes:
            rows += measure_mix(shape, options.max_num_seqs, options.repetitions or GPU_REPETITIONS)
            if options.write:
                write("gpu-mix", rows)
    else:
        for shape in options.shapes:
            known = shape.startswith("qwen2.5")
            measured = measure_on_gpu(
                shape, SETTINGS if known else FEW, options.repetitions or GPU_REPETITIONS
            )
            rows += measured
            if options.write:
                write("gpu", rows)  # after every part: device time may end
            rows.append(distance(shape))
            if options.trl and known:
                rows.append(against_trl(shape, measured[0]["tokens_per_second"]))
            if options.write:
                write("gpu", rows)


def write(where: str, rows: list[dict[str, Any]]) -> None:
    cpu = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    today = datetime.date.today().isoformat()
    result = {
        "date": today,
        "hardware": cpu if where == "cpu" else torch.cuda.get_device_name(),
        "command": f"python bench/rollout.py {' '.join(sys.argv[1:])}",
        "rows": rows,
        "torch": torch.__version__,
        "transformers": metadata.version("transformers"),
    }
    path = HERE / "results" / f"{today}-rollout-{where}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
