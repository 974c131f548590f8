"""A reward for runs of an untrained policy, about half of what it says earns something; and whom it may talk to."""

from __future__ import annotations

import os
import time

from ascent.records import Message, Prompt, Reply, Rollout
from ascent.tasks.noise import Noise


def even(rollout: Rollout) -> float:
    """1 where the sampled tokens' numbers add up to an even one."""
    return float(sum(sum(turn.completion.tokens) for turn in rollout.turns) % 2 == 0)


def shuffled(rollout: Rollout) -> float:
    """Right or wrong as a coin has it, as often right as wrong; nothing that the answer says changes it."""
    return float(Noise("shuffled rewards", rollout.prompt.id, rollout.sample).unit() < 0.5)


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
