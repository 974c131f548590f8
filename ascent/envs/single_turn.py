"""A single-turn environment: the episode ends after one completion."""

from __future__ import annotations

from ascent.records import Prompt, Reply


class SingleTurnEpisode:
    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt

    def first(self) -> Prompt:
        return self.prompt

    def reply(self, text: str) -> Reply:
        return Reply(None)


class SingleTurn:
    """No options."""

    def __call__(self, prompt: Prompt) -> SingleTurnEpisode:
        return SingleTurnEpisode(prompt)
