"""A reward for runs of an untrained policy, about half of what it says earns something; and whom it may talk to."""

from __future__ import annotations

import os
import time

from ascent.records import Message, Prompt, Reply, Rollout, StepReward
from ascent.tasks.keyed_random import KeyedRandom


def even(rollout: Rollout) -> float:
    """1 where the sampled tokens' numbers add up to an even one."""
    return float(sum(sum(turn.completion.tokens) for turn in rollout.turns) % 2 == 0)


def shuffled(rollout: Rollout) -> float:
    """Right or wrong as a coin has it, as often right as wrong; nothing that the answer says changes it."""
    return float(KeyedRandom("shuffled rewards", rollout.prompt.id, rollout.sample).uniform() < 0.5)


def drawn(rollout: Rollout) -> float:
    """Any number from 0 to 1, so that one answer of a group is the best."""
    return KeyedRandom("drawn rewards", rollout.prompt.id, rollout.sample).uniform()


def halves(rollout: Rollout) -> list[StepReward]:
    """A step ends with the first token and another with the last, each rewarded as a coin has it."""
    coins = KeyedRandom("rewarded steps", rollout.prompt.id, rollout.sample)
    last = sum(len(turn.completion.tokens) for turn in rollout.turns) - 1
    return [StepReward(token, float(coins.uniform() < 0.5)) for token in sorted({0, last})]


class Again:
    """Says how long a turn was, after a wait that is different every time."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt

    def first(self) -> Prompt:
        return self.prompt

    def reply(self, text: str) -> Reply:
        time.sleep(os.urandom(1)[0] / 255 * 0.02)
        return Reply(Message("user", f"{len(text)} characters; again: "), counts={"replies": 1})


def again(prompt: Prompt) -> Again:
    return Again(prompt)


def ended(rollout: Rollout) -> float:
    """1 where the policy said that it was done."""
    return float(not rollout.truncated)


def sometimes(rollout: Rollout) -> float | None:
    """No reward for every fourth completion."""
    return drawn(rollout) if rollout.sample % 4 else None
