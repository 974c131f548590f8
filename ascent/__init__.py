"""Ascent: reinforcement-learning post-training for language models.

These are the public names. They load on first use, so `import ascent` (and `ascent --help`) costs no torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascent.algorithms import TABLE as TABLE
    from ascent.algorithms import Row as Row
    from ascent.api.train import resume as resume
    from ascent.api.train import train as train
    from ascent.cells import Cell as Cell
    from ascent.config.load import load_config as load_config
    from ascent.config.schema import Config as Config
    from ascent.plan import Plan as Plan
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

# MKL, the BLAS of torch on x86, otherwise sums a product in an order that depends on its number of rows, and a sampled
# answer would depend on its neighbours. It costs nothing there, means nothing elsewhere, and must be said before the
# first product.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

_HOMES = {
    "TABLE": "ascent.algorithms",
    "Row": "ascent.algorithms",
    "Plan": "ascent.plan",
    "resolve": "ascent.plan",
    "resume": "ascent.api.train",
    "train": "ascent.api.train",
    "Cell": "ascent.cells",
    "load_config": "ascent.config.load",
    "Config": "ascent.config.schema",
    "Completion": "ascent.records",
    "Example": "ascent.records",
    "Group": "ascent.records",
    "UnpairedExample": "ascent.records",
    "Message": "ascent.records",
    "Pair": "ascent.records",
    "Prompt": "ascent.records",
    "Ranking": "ascent.records",
    "Rollout": "ascent.records",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ascent' has no public name {name!r}; it has {', '.join(sorted(_HOMES))}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
