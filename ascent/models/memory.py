"""An estimate of peak memory from a model's config, before anything is allocated.

Activations are those of a standard decoder (two norms, attention, a gated MLP) for one micro-batch of `tokens` packed
tokens. Attention keeps no scores (flash or SDPA), and the full logits never exist, so nothing grows with tokens x
vocabulary or tokens x tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from transformers import PreTrainedConfig

from ascent.models.fused_logprobs import BUDGET_BYTES

BYTES = {"float32": 4, "bfloat16": 2}
MICROBATCH_BYTES = 27 * 2**29  # of activations: larger micro-batches are hardly faster
# With the optimizer's state in host memory: values of a bucket, and buckets on the GPU at a time.
OFFLOAD_BUCKET, OFFLOAD_SLOTS = 2**23, 3
QUANTIZED_BYTES = (
    4 + 8 / 64 + 32 / (64 * 256)
) / 8  # NF4: a scale for 64 weights, in 8 bits, and one for 256 scales


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that determine its memory."""

    parameters: int
    trained: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int
    head_size: int
    quantized: int = 0  # of the parameters, stored in 4 bits

    def weight_bytes(self, size: int) -> int:
        return (self.parameters - self.quantized) * size + int(self.quantized * QUANTIZED_BYTES)


@dataclass(frozen=True)
class Forecast:
    """Bytes by purpose, on the device; those in `host` are in the memory of the host."""

    weights: int
    gradients: int
    masters: int
    moments: int
    activations: int
    logits: int
    reference: int = 0
    critic: int = 0
    staging: int = 0
    host: int = 0

    @property
    def total(self) -> int:
        return self.persistent + self.transient + self.reference + self.critic

    @property
    def persistent(self) -> int:
        """Persistent from step to step."""
        return self.weights + self.masters + self.moments + self.staging

    @property
    def transient(self) -> int:
        """Needed only during an update."""
        return self.gradients + self.activations + self.logits


def shape_of(
    config: PreTrainedConfig, parameters: int, trained: int | None = None, quantized: int = 0
) -> Shape:
    """Read the sizes from a config; `trained` is smaller than `parameters` with LoRA."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    return Shape(
        parameters=parameters,
        trained=parameters if trained is None else trained,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        heads=heads,
        key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_size=getattr(text, "head_dim", None) or text.hidden_size // heads,
        quantized=quantized,
    )


def forecast(
    shape: Shape,
    *,
    tokens: int,
    dtype: str = "float32",
    training: bool = True,
    gradient_checkpointing: bool = False,
    optimizer_offload: bool = False,
    budget_bytes: int = BUDGET_BYTES,
    reference: int = 0,
    fused: bool = False,
    ranks: int = 1,
    sharded: bool = False,
    keeps_weights: bool = False,
) -> Forecast:
    """Peak bytes of one optimizer step over micro-batches of `tokens` tokens (or, not training, of one forward).

    Adam keeps two float32 moments per trained weight; bfloat16 weights also have a float32 master copy, and their
    gradients are accumulated in float32. `optimizer_offload` keeps moments and masters in host memory, apart from a few
    buckets of them (`staging`). `reference` is the number of weights of a frozen model in memory. Without a
    token head `budget_bytes` is 0. `fused`: with the kernels of CUDA, which keep less. Of several `ranks` each has its
    part of masters and moments; of a model that is `sharded` also its part of gradients and float32 weights, besides
    one whole layer, or all of them where an update `keeps_weights`, and the whole for sampling.
    """
    if tokens < 1:
        raise ValueError(f"tokens={tokens}: a micro-batch holds at least one token")
    if dtype not in BYTES:
        raise ValueError(f"dtype={dtype!r} is not supported; use {' or '.join(BYTES)}")
    size = BYTES[dtype]
    layer, hidden_bytes = (
        layer_bytes(shape, tokens, size, fused=fused),
        tokens * shape.hidden * size,
    )
    if not training:
        return Forecast(
            shape.weight_bytes(size),
            0,
            0,
            0,
            layer + 2 * hidden_bytes,
            budget_bytes,
            reference * size,
        )
    # With gradient checkpointing each layer keeps its input, and one layer at a time is recomputed.
    activations = (
        shape.layers * hidden_bytes + layer if gradient_checkpointing else shape.layers * layer
    )
    own = -(-shape.trained // ranks)
    gathered = shape.weight_bytes(size) // (1 if keeps_weights else max(shape.layers, 1))
    masters, moments = own * 4 if sharded or dtype != "float32" else 0, own * 8
    gradients = shape.trained * (4 if dtype == "float32" or fused else size + 4)
    on_device = not optimizer_offload
    return Forecast(
        weights=shape.weight_bytes(size),
        gradients=own * 4 + gathered if sharded else gradients,
        masters=masters * on_device,
        moments=moments * on_device,
        staging=0 if on_device else min(OFFLOAD_SLOTS * OFFLOAD_BUCKET, shape.trained) * 12,
        host=0 if on_device else masters + moments,
        activations=activations + 3 * tokens * shape.hidden * 4,
        logits=budget_bytes,
        reference=reference * size,
    )


def with_critic(policy: Forecast, critic: Forecast) -> Forecast:
    """Two models that are updated one after the other: persistent memory adds up, the rest is the larger of the two."""
    larger = max(policy, critic, key=lambda each: each.transient)
    return replace(
        policy,
        gradients=larger.gradients,
        activations=larger.activations,
        logits=larger.logits,
        critic=critic.persistent,
        host=policy.host + critic.host,
    )


def layer_bytes(shape: Shape, tokens: int, size: int, *, fused: bool = False) -> int:
    """The activations that one layer keeps for its backward pass.

    Per token: the residual stream in and out of each half and each norm in float32 and in the model's precision;
    queries, keys and values before and after the rotation, the attention's output; gate, up, their activation and
    product. `fused` kernels keep the residual stream, rotated queries, keys and values (again for every sequence that
    shares a prompt), the attention's output, gate and up.
    """
    queries, keys = shape.heads * shape.head_size, 2 * shape.key_value_heads * shape.head_size
    if fused:
        kept = 2 * shape.hidden + 2 * queries + 3 * keys // 2 + 2 * shape.intermediate
        return tokens * (kept * size + (shape.heads + 2) * 4)
    norms = 2 * (2 * size + 2 * 4) * shape.hidden
    attention = (3 * queries + 2 * keys) * size + shape.heads * 4
    feed_forward = 4 * shape.intermediate * size
    return tokens * (norms + attention + feed_forward)


def microbatch_tokens(
    shape: Shape, dtype: str, *, gradient_checkpointing: bool, limit: int, room: int | None = None
) -> int:
    """The tokens whose activations take MICROBATCH_BYTES on CUDA, or `room` bytes if that is less; at most `limit`."""
    size = BYTES[dtype]
    layer = layer_bytes(shape, 1, size, fused=True)
    kept = (
        shape.layers * shape.hidden * size + layer
        if gradient_checkpointing
        else shape.layers * layer
    )
    room = MICROBATCH_BYTES if room is None else min(room, MICROBATCH_BYTES)
    return max(1, min(limit, room // (kept + 3 * shape.hidden * 4)))
