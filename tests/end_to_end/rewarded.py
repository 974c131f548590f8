"""A reward for runs of an untrained policy: about half of what it says earns something."""

from __future__ import annotations

from ascent.records import Rollout


def even(rollout: Rollout) -> float:
    """1 where an even number of tokens was sampled."""
    return float(rollout.length % 2 == 0)
