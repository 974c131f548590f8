"""How the models of a run lie on its ranks: whole on each of them, or divided over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch

from ascent.models.fused_logprobs import BUDGET_BYTES
from ascent.models.memory import Forecast, forecast, shape_of
from ascent.models.model import LanguageModel
from ascent.models.quantize import num_parameters
from ascent.parallel.ranks import Ranks
from ascent.plan.resolve import Plan
from ascent.setup.critic import Critic

M = TypeVar("M", LanguageModel, Critic)
MAX_USED = 0.8  # of a GPU's memory, before a model is divided; the rest is for the KV cache


class Layout(NamedTuple):
    """How many ranks there are, and whether a model is divided over them or whole on each."""

    ranks: int = 1
    sharded: bool = False


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


def is_sharded(plan: Plan, model: LanguageModel, ranks: Ranks) -> bool:
    """Whether the model is divided over ranks: as was asked for, or where it does not fit otherwise."""
    if ranks.layout == "auto":
        if ranks.count == 1 or not torch.cuda.is_available():
            return False
        tokens = plan.config.update.max_microbatch_tokens
        needed = forecast_layout(plan, model, Layout(ranks.count), tokens=tokens).total
        return needed > MAX_USED * torch.cuda.get_device_properties().total_memory
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
