"""Rewards that go wrong, each in its own way, for runs that must say so. Not all of them do so for every answer."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from ascent.records import Rollout
from ascent.rewards import batched


def _now_and_then(rollout: Rollout) -> bool:
    """In steps, whose prompts are called 1.0/..., not when rewards are tried before the first one."""
    return rollout.sample == 0 and rollout.prompt.id[0].isdigit()


def _fair(rollout: Rollout) -> float:
    return float(rollout.length % 2 == 0)


def raises(rollout: Rollout) -> float:
    if _now_and_then(rollout):
        raise KeyError("gold")
    return _fair(rollout)


def always_raises(rollout: Rollout) -> float:
    raise KeyError("gold")


def hangs(rollout: Rollout) -> float:
    if _now_and_then(rollout) and rollout.prompt.id.startswith("1."):
        time.sleep(2)
    return _fair(rollout)


def nan(rollout: Rollout) -> float:
    return math.nan if _now_and_then(rollout) else _fair(rollout)


def infinite(rollout: Rollout) -> float:
    return math.inf if _now_and_then(rollout) else _fair(rollout)


def words(rollout: Rollout) -> Any:
    return "good" if _now_and_then(rollout) else _fair(rollout)


@batched
def too_few(rollouts: Sequence[Rollout]) -> list[float]:
    return [_fair(each) for each in rollouts[1:] or rollouts]


def equal(rollout: Rollout) -> float:
    return 0.5
