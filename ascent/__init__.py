"""Ascent: reinforcement-learning post-training for language models.

These are the public names. They load on first use, so `import ascent` (and `ascent --help`) does not import torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascent.algorithms import TABLE as TABLE
    from ascent.algorithms import Row as Row
    from ascent.api.advantages import add_advantages as add_advantages
    from ascent.api.batches import batches as batches
    from ascent.api.batches import load_data as load_data
    from ascent.api.check import check as check
    from ascent.api.collect import collect as collect
    from ascent.api.compare import compare as compare
    from ascent.api.compare_runs import compare_runs as compare_runs
    from ascent.api.diagnose import diagnose_run as diagnose_run
    from ascent.api.evaluate import evaluate as evaluate
    from ascent.api.export import export as export
    from ascent.api.forecast import forecast as forecast
    from ascent.api.forecast import forecast_score as forecast_score
    from ascent.api.iterate import iterate as iterate
    from ascent.api.policy import Policy as Policy
    from ascent.api.replay import bisect as bisect
    from ascent.api.replay import replay as replay
    from ascent.api.sample import sample as sample
    from ascent.api.score import score as score
    from ascent.api.sweep import sweep as sweep
    from ascent.api.train import resume as resume
    from ascent.api.train import train as train
    from ascent.cells import Cell as Cell
    from ascent.config.schema import Config as Config
    from ascent.plan import Plan as Plan
    from ascent.plan import load_config as load_config
    from ascent.plan import resolve as resolve
    from ascent.records import Completion as Completion
    from ascent.records import Example as Example
    from ascent.records import Group as Group
    from ascent.records import Message as Message
    from ascent.records import Pair as Pair
    from ascent.records import Prompt as Prompt
    from ascent.records import Ranking as Ranking
    from ascent.records import Rollout as Rollout
    from ascent.records import UnpairedExample as UnpairedExample

__version__ = "0.1.0"

# MKL, torch's BLAS on x86, otherwise orders the sums of a matrix product by its number of rows, so that a completion
# would depend on the others in its batch. No cost; no effect elsewhere. It must be set before the first product.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

_MODULES = {
    "ascent.algorithms": ("TABLE", "Row"),
    "ascent.cells": ("Cell",),
    "ascent.config.schema": ("Config",),
    "ascent.plan": ("Plan", "load_config", "resolve"),
    "ascent.records": (
        *(
            "Completion",
            "Example",
            "Group",
            "Message",
            "Pair",
            "Prompt",
            "Ranking",
            "Rollout",
            "UnpairedExample",
        ),
    ),
    "ascent.api.train": ("train", "resume"),
    "ascent.api.policy": ("Policy",),
    "ascent.api.diagnose": ("diagnose_run",),
    "ascent.api.replay": ("replay", "bisect"),
    "ascent.api.forecast": ("forecast", "forecast_score"),
    "ascent.api.advantages": ("add_advantages",),
    "ascent.api.batches": ("batches", "load_data"),
    **{
        f"ascent.api.{name}": (name,)
        for name in (
            "check",
            "collect",
            "compare",
            "compare_runs",
            "evaluate",
            "export",
            "iterate",
            "sample",
            "score",
            "sweep",
        )
    },
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(
            f"module 'ascent' has no public name {name!r}; it has {', '.join(sorted(_HOMES))}"
        )
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
