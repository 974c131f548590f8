"""The tables of docs/scale.md: what fits on how many GPUs, and a model of step time from phases measured on one.

    python bench/scale.py [--host]

With `--host` it measures the work of the host for a sampled token, which the model of step time takes as HOST.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from ascent.models.memory import Shape, forecast

GIB, TOKENS = 2**30, 16384


def shape(
    layers: int, hidden: int, intermediate: int, heads: int, key_values: int, vocab: int, tied: bool
) -> Shape:
    """A decoder of the family of Llama and Qwen2.5; heads of 128."""
    attention = hidden * 128 * (2 * heads + 2 * key_values)
    weights = layers * (attention + 3 * hidden * intermediate) + vocab * hidden * (1 if tied else 2)
    return Shape(weights, weights, layers, hidden, intermediate, heads, key_values, 128)


MODELS = {
    "1.5B": shape(28, 1536, 8960, 12, 2, 151936, True),
    "7B": shape(28, 3584, 18944, 28, 4, 152064, False),
    "14B": shape(48, 5120, 13824, 40, 8, 152064, False),
    "32B": shape(64, 5120, 27648, 40, 8, 152064, False),
    "70B": shape(80, 8192, 28672, 64, 8, 128256, False),
}
LAYOUTS = ((1, False), (8, False), (8, True), (64, False), (64, True))


def memory_table() -> Iterator[str]:
    """GiB for each GPU."""
    words = [f"{ranks} {'sharded' if sharded else 'replicated'}" for ranks, sharded in LAYOUTS[1:]]
    yield f"| model | 1 GPU | {' | '.join(words)} |"
    yield "|---" * (len(LAYOUTS) + 1) + "|"
    for name, each in MODELS.items():
        found = [
            forecast(
                each,
                tokens=TOKENS,
                dtype="bfloat16",
                gradient_checkpointing=True,
                fused=True,
                ranks=n,
                sharded=sharded,
            )
            for n, sharded in LAYOUTS
        ]
        yield f"| {name} | {' | '.join(f'{own.total / GIB:,.0f}' for own in found)} |"


class Host(NamedTuple):
    """CPU microseconds for a sampled token: to read one of another rank, and to send and pack an own one."""

    read: float
    own: float


# Measured: the 1.5B shape on one H200, 64 prompts x 8 completions of 512 tokens (2026-11-17-step-gpu.json, work E).
SAMPLING, UPDATE, SCALE, DECODE = (
    2.8,
    5.5,
    16,
    512 * 0.005,
)  # seconds; the step here has 16 times as many prompts
NVLINK, NETWORK = (
    0.8 * 450e9,
    0.8 * 50e9,
)  # bytes a second of a GPU, inside and between machines of 8
HOST = Host(read=0.22, own=0.28)


def time_table() -> Iterator[str]:
    yield "| GPUs | sampling | update | gradients and weights | rollouts, on the host | step |"
    yield "|---" * 6 + "|"
    tokens = SCALE * 64 * 8 * 512
    for gpus in (8, 64, 512):
        sampling, update = max(SCALE * SAMPLING / gpus, DECODE), SCALE * UPDATE / gpus
        sent = 6 * MODELS["1.5B"].trained * (gpus - 1) / gpus / (NVLINK if gpus <= 8 else NETWORK)
        host = 1e-6 * tokens * (HOST.read * (gpus - 1) + HOST.own) / gpus
        parts = (sampling, update, sent, host)
        words = [
            f"{each:.1f} s" if each >= 1 else f"{each:.2f} s".removeprefix("0") for each in parts
        ]
        yield f"| {gpus} | {' | '.join(words)} | {sum(parts):.0f} s |"


def measure_host() -> Iterator[str]:
    """On one core, with 512 rollouts of 200 + 512 tokens."""
    import pickle

    from ascent.parallel.distributed import dump
    from ascent.records import Completion, Prompt, Rollout, Turn
    from ascent.rollouts.batch import pack_rollouts

    prompt, count, length = tuple(range(1000, 1200)), 512, 512
    rollouts = []
    for index in range(count):
        tokens = tuple((index * 7919 + place * 104729) % 151936 for place in range(length))
        logprobs = tuple(-((index + place) % 97) / 31 for place in range(length))
        completion = Completion(
            f"1.0/{index // 8}/a", index % 8, tokens, logprobs, (0,) * length, "eos"
        )
        rollouts.append(
            Rollout(
                Prompt(f"1.0/{index // 8}/a", "text"),
                index % 8,
                (Turn(prompt, completion, "text"),),
            )
        )
    packed, total = pack_rollouts(rollouts), count * length
    sent, batch = dump(rollouts), dump(packed)
    yield f"{len(sent) / total:.1f} + {len(batch) / total:.1f} bytes for a sampled token: in its rollout, in its batch"

    def seconds(work: Callable[[], Any]) -> float:
        began = time.process_time()
        for _ in range(3):
            work()
        return (time.process_time() - began) / 3 / total * 1e6

    read = seconds(lambda: (pickle.loads(sent), pickle.loads(batch)))
    own = seconds(lambda: (dump(rollouts), dump(pack_rollouts(rollouts))))
    yield f"{read:.2f} us to read one of another rank, {own:.2f} us to pack and send an own one"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", action="store_true")
    tables = (
        measure_host() if parser.parse_args().host else chain(memory_table(), [""], time_table())
    )
    print("\n".join(tables))
