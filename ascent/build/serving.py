"""A reward model as a function of conversations, for `ascent serve-reward`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch

from ascent.build.policy import device
from ascent.data.errors import RowError
from ascent.data.prepare import Limits, item_of
from ascent.data.render import Renderer
from ascent.data.sources import once
from ascent.models.load import load
from ascent.records import Judged, Message, Prompt, Role
from ascent.update.batches import on_device


class RewardModel:
    """Scores (messages, completion) as `ascent score` does; None for what is too long for it."""

    def __init__(self, model: str, *, tokens_per_microbatch: int = 16384) -> None:
        self._model = load(model, head="scalar", device=device())
        self._model.eval()
        if any("new" in note for note in self._model.notes):
            raise ValueError(
                f"{model} has no scalar head, so its scores would be random; train a reward model from it first"
            )
        self._renderer = Renderer(self._model.tokenizer, train_on="completion")
        self._limits = Limits(max_tokens=tokens_per_microbatch, max_prompt_tokens=tokens_per_microbatch - 1)

    def __call__(self, items: Sequence[tuple[Sequence[Mapping[str, str]], str]]) -> list[float | None]:
        # One at a time, so that a score does not depend on who else asked.
        return [self._one(messages, completion) for messages, completion in items]

    def _one(self, messages: Sequence[Mapping[str, str]], completion: str) -> float | None:
        asked = tuple(Message(cast(Role, each["role"]), each["content"]) for each in messages)
        record = Judged(Prompt("served", asked), (Message("assistant", completion),), True)
        most = self._limits.max_tokens
        try:
            item = item_of(record, self._renderer, self._limits)
        except RowError:
            return None
        (batch,) = once([item], tokens_per_microbatch=most, max_tokens=most, companions=False)
        with torch.no_grad():
            outputs = self._model.outputs(on_device(batch, self._model.device), frozenset({"scores_B"}))
        scores_B = outputs["scores_B"]
        centre = self._model.normalisation
        return float((scores_B if centre is None else centre(scores_B)).item())
