"""One question, one answer: the episode is over when the policy has spoken once."""

from __future__ import annotations

from ascent.records import Prompt, Reply


class Once:
    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt

    def first(self) -> Prompt:
        return self.prompt

    def reply(self, text: str) -> Reply:
        return Reply(None)


class SingleTurn:
    """No options."""

    def __call__(self, prompt: Prompt) -> Once:
        return Once(prompt)
