"""A reward model as a function of conversations, for `ascent serve-reward`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch

from ascent.build.policy import device
from ascent.data.collate import collate
from ascent.data.errors import RowError
from ascent.data.prepare import Item, Limits, item_of
from ascent.data.render import Renderer
from ascent.models.load import load
from ascent.records import Judged, Message, Prompt, Role
from ascent.update.batches import on_device

Conversation = tuple[Sequence[Mapping[str, str]], str]


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

    def __call__(self, items: Sequence[Conversation]) -> list[float | None]:
        # One at a time, so that a score does not depend on who else asked.
        return [self._scores([item])[0] if item is not None else None for item in map(self._item, items)]

    def together(self, items: Sequence[Conversation]) -> list[float | None]:
        """The same in packed batches, many times faster. A score may differ in its last bits by its company, so this is
        for whoever always asks about the same ones at once."""
        found: list[float | None] = [None] * len(items)
        pieces: list[dict[int, Item]] = [{}]
        tokens = 0  # of the last piece
        for place, item in enumerate(map(self._item, items)):
            if item is None:
                continue
            if tokens + item.tokens > self._limits.max_tokens:
                pieces.append({})
                tokens = 0
            pieces[-1][place] = item
            tokens += item.tokens
        for piece in filter(None, pieces):
            for place, score in zip(piece, self._scores(list(piece.values())), strict=True):
                found[place] = score
        return found

    def _item(self, conversation: Conversation) -> Item | None:
        """None for what is too long."""
        messages, completion = conversation
        asked = tuple(Message(cast(Role, each["role"]), each["content"]) for each in messages)
        record = Judged(Prompt("served", asked), (Message("assistant", completion),), True)
        try:
            return item_of(record, self._renderer, self._limits)
        except RowError:
            return None

    @torch.no_grad()
    def _scores(self, items: Sequence[Item]) -> list[float]:
        """Of items that fit into one batch."""
        outputs = self._model.outputs(on_device(collate(items), self._model.device), frozenset({"scores_B"}))
        scores_B, centre = outputs["scores_B"], self._model.normalisation
        return [float(score) for score in (scores_B if centre is None else centre(scores_B)).tolist()]
