"""`model.arithmetic: auto`, decided before anything is loaded: exact where that is proven, fast elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ascent.config.validate import validate
from ascent.models.exact import device_problem, is_proven
from ascent.models.load import read_config
from ascent.parallel.ranks import Ranks
from ascent.plan.resolve import Plan
from ascent.setup.critic import origin as critic_origin
from ascent.setup.policy import device, initial


def with_arithmetic(plan: Plan, folder: Path, ranks: Ranks) -> Plan:
    """The plan with `fast` or `exact` in place of `auto`: the run folder records what the run was trained with."""
    if plan.config.model.arithmetic != "auto":
        return plan
    values = plan.config.model_dump(mode="json", exclude_unset=True)
    values["model"]["arithmetic"] = "exact" if _is_exact(plan, folder, ranks) else "fast"
    return replace(plan, config=validate(values))


def _is_exact(plan: Plan, folder: Path, ranks: Ranks) -> bool:
    """Only where this process samples what it trains: elsewhere there is nothing that could be equal."""
    config = plan.config
    if not plan.row.samples or config.rollouts.engine != "native" or ranks.count > 1:
        return False
    settings = config.model
    if (
        settings.dtype != "bfloat16"
        or settings.quantize is not None
        or device_problem(torch.device(device()))
    ):
        return False
    names = [
        settings.policy,
        settings.reference,
    ]  # all that are loaded with the policy's arithmetic
    if "critic" in plan.row.needs and settings.critic == "separate":
        names.append(critic_origin(plan)[1])
    places = [
        initial(name, folder, config.seed, plan.objects) for name in names if name is not None
    ]
    return all(
        is_proven(read_config(place, trust_remote_code=settings.trust_remote_code))
        for place in places
    )
