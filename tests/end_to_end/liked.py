"""What a simulated annotator likes, for tests of rounds: a plain reward in a file of one's own."""

from __future__ import annotations

from ascent.records import Rollout


def high(rollout: Rollout) -> float:
    """How high the digits are on average, from 0 to 1."""
    digits = [int(letter) for letter in rollout.text if letter in "0123456789"]
    return sum(digits) / len(digits) / 9 if digits else 0.0
