"""How the models of a run lie on its ranks: whole on each of them, or divided over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch

from ascent.models.fused_logprobs import BUDGET_BYTES, CUDA_BUDGET_BYTES
from ascent.models.memory import MICROBATCH_BYTES, Forecast, forecast, microbatch_tokens, shape_of
from ascent.models.model import LanguageModel
from ascent.models.quantize import num_parameters
from ascent.parallel.ranks import Ranks
from ascent.plan.resolve import Plan
from ascent.setup.critic import Critic

M = TypeVar("M", LanguageModel, Critic)
MAX_USED = 0.8  # of a GPU's memory, before a model is divided; the rest is for the KV cache
UPDATE_FRACTION = 0.85  # of a GPU's memory, for an update; the KV cache is given back before it


class Layout(NamedTuple):
    """How many ranks there are, whether a model is divided over them or whole on each, and whether each gathers a
    divided model once for all micro-batches of a step and not once for each pass."""

    ranks: int = 1
    sharded: bool = False
    keeps_weights: bool = False


ONE_RANK = Layout()


def forecast_layout(
    plan: Plan,
    model: LanguageModel,
    layout: Layout,
    *,
    tokens: int,
    budget_bytes: int = BUDGET_BYTES,
    reference: int = 0,
    cuda: bool | None = None,
) -> Forecast:
    """The memory of one rank that trains this model. `cuda`: on a GPU; None: where the model is."""
    parameters, quantized = num_parameters(model.module)
    trained = sum(each.numel() for each in model.parameters())
    return forecast(
        shape_of(model.module.config, parameters, trained, quantized),
        tokens=tokens,
        dtype=plan.config.model.dtype,
        gradient_checkpointing=plan.config.model.gradient_checkpointing,
        optimizer_offload=plan.config.update.optimizer_offload,
        budget_bytes=budget_bytes,
        fused=model.device.type == "cuda" if cuda is None else cuda,
        reference=reference,
        ranks=layout.ranks,
        sharded=layout.sharded,
        keeps_weights=layout.keeps_weights,
    )


def microbatch_target(
    plan: Plan,
    model: LanguageModel,
    layout: Layout = ONE_RANK,
    *,
    cuda: bool | None = None,
    memory: int | None = None,
) -> int:
    """The tokens of a micro-batch in training, where a single sequence is not longer.

    On a GPU their activations fit beside the models of the run, into its whole memory: what other processes use is not
    asked, because a run must be split in the same way when it is resumed. `cuda`: on a GPU; None: where the model is.
    `memory`: the bytes of that GPU; None: of the one the model is on, if it is.
    """
    update, settings = plan.config.update, plan.config.model
    limit = update.max_microbatch_tokens
    on_cuda = model.device.type == "cuda" if cuda is None else cuda
    if update.tokens_per_microbatch is not None or not on_cuda:
        return limit
    memory = gpu_memory(model) if memory is None else memory
    room = (
        None
        if memory is None
        else int(UPDATE_FRACTION * memory) - models_bytes(plan, model, layout)
    )
    checkpointing = settings.gradient_checkpointing
    shape = shape_of(model.module.config, 0)
    return microbatch_tokens(
        shape, settings.dtype, gradient_checkpointing=checkpointing, limit=limit, room=room
    )


def gpu_memory(model: LanguageModel) -> int | None:
    """The bytes of the GPU that the model is on."""
    return (
        torch.cuda.get_device_properties(model.device).total_memory
        if model.device.type == "cuda"
        else None
    )


def agreed_target(plan: Plan, model: LanguageModel, ranks: Ranks, layout: Layout) -> int:
    """`microbatch_target` of the rank with the least memory: all ranks split a step in the same way."""
    own = microbatch_target(plan, model, layout)
    return min(ranks.gather(own, "the size of micro-batches"))


def models_bytes(plan: Plan, model: LanguageModel, layout: Layout) -> int:
    """What an update needs on a GPU besides activations. Frozen models are taken to be as large as the policy."""
    settings, needs = plan.config.model, plan.row.needs
    own = forecast_layout(plan, model, layout, tokens=1, budget_bytes=CUDA_BUDGET_BYTES, cuda=True)
    frozen = (
        "reference" in needs and (settings.lora is None or settings.reference is not None),
        bool(needs & {"teacher", "teacher_distribution"}),
        settings.reward_model is not None,
        plan.config.rollouts.max_staleness > 0,  # a copy samples while the policy is updated
    )
    critic = own.persistent if "critic" in needs and settings.critic == "separate" else 0
    return own.total + sum(frozen) * own.weights + critic


def choose_layout(
    plan: Plan, model: LanguageModel, ranks: Ranks, *, memory: int | None = None
) -> Layout:
    """Divided as was asked for, or where the model does not fit otherwise.

    Gathered once a step where micro-batches need not be smaller for that. `memory`: the bytes of a GPU; None: of the
    one the model is on, if it is.
    """
    layout = Layout(ranks.count, is_sharded(plan, model, ranks))
    memory = gpu_memory(model) if memory is None else memory
    if not layout.sharded or memory is None:
        return layout
    kept = layout._replace(keeps_weights=True)
    fits = models_bytes(plan, model, kept) + MICROBATCH_BYTES <= UPDATE_FRACTION * memory
    return kept if all(ranks.gather(fits, "the layout")) else layout


def is_sharded(plan: Plan, model: LanguageModel, ranks: Ranks) -> bool:
    """Whether the model is divided over ranks: as was asked for, or where it does not fit otherwise."""
    if ranks.layout == "auto":
        if ranks.count == 1 or not torch.cuda.is_available():
            return False
        tokens = plan.config.update.max_microbatch_tokens
        needed = forecast_layout(plan, model, Layout(ranks.count), tokens=tokens).total
        too_large = needed > MAX_USED * torch.cuda.get_device_properties().total_memory
        return any(ranks.gather(too_large, "the layout"))
    if ranks.layout == "sharded" and plan.config.model.quantize is not None:
        raise ValueError(
            f"layout sharded cannot divide 4-bit weights (model.quantize={plan.config.model.quantize}); use "
            "replicated, or remove model.quantize"
        )
    return ranks.layout == "sharded"


def describe_layout(layout: Layout) -> tuple[str, ...]:
    """In words, for several ranks."""
    if layout == ONE_RANK:
        return ()
    how = "weights whole on each, optimizer divided"
    if layout.sharded:
        how = "weights, gradients and optimizer divided (FSDP2)"
    if layout.keeps_weights:
        how += ", weights gathered once a step"
    return (f"{layout.ranks} ranks: {how}",)


def divide(load: Callable[[], M], ranks: Ranks, device: torch.device, layout: Layout) -> M:
    """A second copy of a model, divided over the ranks. `load` loads it whole, in host memory."""
    from ascent.update.fsdp import shard

    model = load()
    divided = model if isinstance(model, LanguageModel) else model.model
    shard(divided, ranks, device, keeps_weights=layout.keeps_weights)
    return model
