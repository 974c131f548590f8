"""How the models of a run lie on its ranks: whole on each of them, or divided over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch

from ascent.models.fused_logprobs import BUDGET_BYTES, CUDA_BUDGET_BYTES
from ascent.models.memory import Forecast, forecast, microbatch_tokens, shape_of
from ascent.models.model import LanguageModel
from ascent.models.quantize import num_parameters
from ascent.parallel.ranks import Ranks
from ascent.plan.resolve import Plan
from ascent.setup.critic import Critic

M = TypeVar("M", LanguageModel, Critic)
MAX_USED = 0.8  # of a GPU's memory, before a model is divided; the rest is for the KV cache
UPDATE_FRACTION = 0.85  # of a GPU's memory, for an update; the KV cache is given back before it


class Layout(NamedTuple):
    """How many ranks there are, and whether a model is divided over them or whole on each."""

    ranks: int = 1
    sharded: bool = False


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
    )


def microbatch_target(
    plan: Plan, model: LanguageModel, layout: Layout = ONE_RANK, *, cuda: bool | None = None, memory: int | None = None
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
    if memory is None and model.device.type == "cuda":
        memory = torch.cuda.get_device_properties(model.device).total_memory
    room = None if memory is None else int(UPDATE_FRACTION * memory) - models_bytes(plan, model, layout)
    checkpointing = settings.gradient_checkpointing
    shape = shape_of(model.module.config, 0)
    return microbatch_tokens(shape, settings.dtype, gradient_checkpointing=checkpointing, limit=limit, room=room)


def agreed_target(plan: Plan, model: LanguageModel, ranks: Ranks, *, sharded: bool) -> int:
    """`microbatch_target` of the rank with the least memory: all ranks split a step in the same way."""
    own = microbatch_target(plan, model, Layout(ranks.count, sharded))
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


def describe_layout(ranks: Ranks, *, sharded: bool) -> tuple[str, ...]:
    """In words, for several ranks."""
    if ranks.count == 1 and not sharded:
        return ()
    how = "weights, gradients and optimizer divided (FSDP2)" if sharded else "weights whole on each, optimizer divided"
    return (f"{ranks.count} ranks: {how}",)


def divide(load: Callable[[], M], ranks: Ranks, device: torch.device) -> M:
    """A second copy of a model, divided over the ranks. `load` loads it whole, in host memory."""
    from ascent.update.fsdp import shard

    model = load()
    shard(model if isinstance(model, LanguageModel) else model.model, ranks, device)
    return model
