"""What a step costs on a GPU that is not here, from its data sheet.

Rooflines with one measured efficiency each: products run at a share of the card's arithmetic, or as fast as the host
launches them, and decoding reads the weights and the KV cache once per token at a share of its bandwidth. Good to a
factor of about two: for more, measure on the card itself (`ascent forecast` without --gpu).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MATMUL, FORWARD, BANDWIDTH = 0.4, 0.45, 0.5  # shares of the data sheet that a well-fed step reaches
HOST = 0.003  # seconds of a decode step, or of an update, that no card makes shorter
# Seconds in which the host launches one layer of a micro-batch; with gradients 4 to 5.3 ms beside two H200.
LAYER_SECONDS, FORWARD_LAYER_SECONDS = 0.004, 0.001
HOST_LINK = 40e9  # bytes/s in each direction between host and card, PCIe 5
OPTIMIZER_BYTES, OFFLOADED_BYTES = (
    30,
    12,
)  # of a trained weight: that AdamW reads and writes; that come from the host


@dataclass(frozen=True)
class Gpu:
    """The data sheet: memory in bytes, bandwidth in bytes/s, dense bfloat16 arithmetic in FLOP/s."""

    memory: float
    bandwidth: float
    flops: float


GPUS = {
    "B200": Gpu(180e9, 7.7e12, 2250e12),
    "H200": Gpu(141e9, 4.8e12, 989e12),
    "H100": Gpu(80e9, 3.35e12, 989e12),
    "A100-80GB": Gpu(80e9, 2.0e12, 312e12),
    "A100-40GB": Gpu(40e9, 1.55e12, 312e12),
    "L40S": Gpu(48e9, 0.864e12, 362e12),
    "A10G": Gpu(24e9, 0.6e12, 70e12),
    "RTX-4090": Gpu(24e9, 1.008e12, 165e12),
    "MI300X": Gpu(192e9, 5.3e12, 1307e12),
}


def find_gpu(name: str) -> Gpu:
    known = {each.lower(): gpu for each, gpu in GPUS.items()}
    if name.lower() not in known:
        raise ValueError(f"gpu={name!r} has no data sheet here; there are {', '.join(GPUS)}")
    return known[name.lower()]


@dataclass(frozen=True)
class StepWork:
    """What one step runs. `passes` are gradient passes over the tokens (epochs), `updates` optimizer steps, `forwards`
    passes without gradient (reference, old log-probs, critic's values); `trained_models` is 2 with a separate critic.
    """

    parameters: int
    tokens: float  # of a batch, prompts and completions
    trained: int | None = None  # of the parameters; None: all
    passes: int = 1
    updates: int = 1
    forwards: int = 0
    trained_models: int = 1
    recomputes: bool = False
    offloaded: bool = False  # the optimizer's state is in host memory
    layers: int = 0
    microbatches: int = 1  # of one pass over the tokens
    sequences: int = 0  # sampled
    prompt_tokens: float = 0.0  # of all distinct prompts
    new_tokens: float = 0.0  # of one completion
    kv_bytes: float = 0.0  # of one token, all layers
    max_num_seqs: int = 512  # that the engine decodes at a time


def step_seconds(gpu: Gpu, work: StepWork, *, free_memory: float) -> dict[str, float]:
    """Seconds by phase, under the names of the metrics. `free_memory` is left for the KV cache."""
    flops = work.parameters * work.tokens
    trained = work.parameters if work.trained is None else work.trained
    # Forward, gradients of activations, gradients of those weights that are trained, and the forward once more.
    products = 4 + 2 * trained / work.parameters + (2 if work.recomputes else 0)
    passes = products * flops * work.passes / (gpu.flops * MATMUL)
    layers = work.layers * work.microbatches  # small models wait for the host
    launches = (
        LAYER_SECONDS + FORWARD_LAYER_SECONDS * work.recomputes
    ) * layers * work.passes + HOST
    forwards = (
        max(2 * flops / (gpu.flops * FORWARD), FORWARD_LAYER_SECONDS * layers) * work.forwards
    )
    optimizer = trained * (
        OFFLOADED_BYTES / HOST_LINK if work.offloaded else OPTIMIZER_BYTES / gpu.bandwidth
    )
    update = work.trained_models * (max(passes, launches) + work.updates * optimizer)
    found = {"time/update": update, "time/prepare": forwards}
    if not work.sequences:
        return found
    length = _length(work)
    room = max(1.0, free_memory / max(1.0, work.kv_bytes * length))
    batch = min(float(work.sequences), room, float(work.max_num_seqs))
    waves = math.ceil(work.sequences / batch)
    read = 2 * work.parameters + batch * work.kv_bytes * length / 2
    decode = (
        max(read / (gpu.bandwidth * BANDWIDTH), 2 * work.parameters * batch / (gpu.flops * FORWARD))
        + HOST
    )
    prefill = 2 * work.parameters * work.prompt_tokens / (gpu.flops * FORWARD)
    return {"time/sample": waves * work.new_tokens * decode + prefill, **found}


def kv_cache_bytes(work: StepWork) -> float:
    """Of all sequences that are decoded at a time, at their full length."""
    return min(work.sequences, work.max_num_seqs) * work.kv_bytes * _length(work)


def _length(work: StepWork) -> float:
    """Tokens that a sequence keeps; a prompt is kept once for its group."""
    return work.prompt_tokens / max(1, work.sequences) + work.new_tokens
