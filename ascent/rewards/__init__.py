"""Rewards: found by name, checked, combined. What cannot be scored is counted, never 0. No torch."""

from ascent.rewards.outcome import Unscored
from ascent.rewards.registry import Batch, batched, find

__all__ = ["Batch", "Unscored", "batched", "find"]
