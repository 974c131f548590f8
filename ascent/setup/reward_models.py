"""Reward models as functions of conversations: of whole answers, and of their steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch

from ascent.data.collate import collate, pack
from ascent.data.errors import RowError
from ascent.data.prepare import Item, Limits, render_record
from ascent.data.render import Renderer, SteppedAnswer
from ascent.data.steps import join_steps
from ascent.models.model import LanguageModel, max_sequence_length
from ascent.records import Message, Prompt, Role, UnpairedExample
from ascent.rewards.outcome import Unscored
from ascent.rewards.steps import Answer, StepScore
from ascent.setup.policy import load_frozen
from ascent.update.device import to_device

Conversation = tuple[Sequence[Mapping[str, str]], str]


def longest_answer(model: LanguageModel, budget: int) -> int:
    """Tokens of a conversation that the model can hold and a batch of `budget` tokens, too."""
    return min(budget, max_sequence_length(model.module.config) or budget)


def cut(lengths: Sequence[int | None], budget: int) -> list[list[int]]:
    """Places in their order, in pieces of at most `budget` tokens; those of length None are left out."""
    pieces: list[list[int]] = []
    room = 0
    for place, length in enumerate(lengths):
        if length is None:
            continue
        if not pieces or length > room:
            pieces.append([])
            room = budget
        pieces[-1].append(place)
        room -= length
    return pieces


class RewardModel:
    """Scores (messages, completion) as `ascent score` does; None for what is too long for it."""

    def __init__(
        self, model: str, *, tokens_per_microbatch: int = 16384, trust_remote_code: bool = False
    ) -> None:
        self._model = load_frozen(model, head="scalar", trust_remote_code=trust_remote_code)
        if self._model.step_format is not None:
            raise ValueError(
                f"{model} is a process reward model: it scores steps, not whole answers; as a reward it is "
                f"{{use: process_reward_model, model: {model}}}, and ascent score prints the scores of steps"
            )
        self._renderer = Renderer(self._model.tokenizer, train_on="completion", check_content=False)
        self._budget, most = (
            tokens_per_microbatch,
            longest_answer(self._model, tokens_per_microbatch),
        )
        self._limits = Limits(max_tokens=most, max_prompt_tokens=most - 1)

    def __call__(self, items: Sequence[Conversation]) -> list[float | None]:
        # One at a time, so that a score does not depend on who else asked.
        return [
            self._scores([item])[0] if item is not None else None for item in map(self._item, items)
        ]

    def together(self, items: Sequence[Conversation]) -> list[float | None]:
        """The same in packed batches, many times faster. A score may differ in its last bits by its company, so this is
        for whoever always asks about the same ones at once."""
        made = [self._item(item) for item in items]
        found: list[float | None] = [None] * len(items)
        for piece in cut([None if each is None else each.tokens for each in made], self._budget):
            scores = self._scores([item for place in piece if (item := made[place]) is not None])
            for place, score in zip(piece, scores, strict=True):
                found[place] = score
        return found

    def _item(self, conversation: Conversation) -> Item | None:
        """None for what is too long."""
        messages, completion = conversation
        asked = tuple(
            Message(cast(Role, each["role"]), each["content"], each.get("extra", ""))
            for each in messages
        )
        record = UnpairedExample(Prompt("served", asked), (Message("assistant", completion),), True)
        try:
            return render_record(record, self._renderer, self._limits)
        except RowError:
            return None

    @torch.no_grad()
    def _scores(self, items: Sequence[Item]) -> list[float]:
        """Of items that fit into one batch."""
        outputs = self._model.outputs(
            to_device(collate(items), self._model.device), frozenset({"scores_B"})
        )
        scores_B, center = outputs["scores_B"], self._model.normalization
        return [
            float(score) for score in (scores_B if center is None else center(scores_B)).tolist()
        ]


class ProcessRewardModel:
    """Scores every step of an answer with the probability that it is right, all of them in packed batches.

    Answers are split by what the model was trained with. One that it cannot read is Unscored, with the reason; one
    without text holds no step that could be right, and has 0 at its end.
    """

    def __init__(
        self, model: str, *, tokens_per_microbatch: int = 16384, loaded: LanguageModel | None = None
    ) -> None:
        self._model = loaded or load_frozen(model, head="scalar")
        found = self._model.step_format
        if found is None:
            raise ValueError(
                f"{model} does not say how answers are split into steps, so it is no process reward model; train one "
                "with row prm or prm_soft, or use it as reward_model"
            )
        self._renderer = Renderer(
            self._model.tokenizer,
            train_on="completion",
            step_separator=found.step_separator,
            check_content=False,
        )
        self._budget, self._longest = (
            tokens_per_microbatch,
            longest_answer(self._model, tokens_per_microbatch),
        )

    def __call__(self, answers: Sequence[Answer]) -> list[list[StepScore] | Unscored]:
        found: dict[int, list[StepScore] | Unscored] = {}
        read: dict[int, SteppedAnswer] = {}
        for place, answer in enumerate(answers):
            made = self._in_steps(answer)
            if isinstance(made, Unscored):
                found[place] = made
            elif not made.char_ends:  # no data can teach a model this, so it is not asked
                found[place] = [StepScore(len(answer.text) + 1, 0.0)]
            else:
                read[place] = made
        lengths = [
            len(read[place].rendered) if place in read else None for place in range(len(answers))
        ]
        for piece in cut(lengths, self._budget):
            for place, values in zip(
                piece, self._chances([read[place] for place in piece]), strict=True
            ):
                found[place] = [
                    StepScore(*each) for each in zip(read[place].char_ends, values, strict=True)
                ]
        return [found[place] for place in range(len(answers))]

    def joined(self, steps: Sequence[str]) -> str:
        """The answer that such steps are; ValueError where it would be split otherwise."""
        return join_steps(steps, self._renderer.step_separator)

    def _in_steps(self, answer: Answer) -> SteppedAnswer | Unscored:
        try:
            found = self._renderer.split_steps(answer.messages, answer.text)
        except RowError as error:
            return Unscored("unreadable", str(error))
        if len(found.rendered) > self._longest:
            return Unscored(
                "too_long",
                f"{len(found.rendered)} tokens, but the model reads {self._longest} at most",
            )
        return found

    @torch.no_grad()
    def _chances(self, read: Sequence[SteppedAnswer]) -> list[list[float]]:
        """Of being right, for the steps of answers that fit into one batch."""
        batch = pack([each.rendered for each in read], range(len(read)))
        outputs = self._model.outputs(
            to_device(batch, self._model.device), frozenset({"step_logits_TC"})
        )
        right_T = outputs["step_logits_TC"].softmax(-1)[:, 0].cpu()
        answers = right_T.split([len(each.rendered) for each in read])
        return [
            own_T[list(each.token_ends)].tolist() for own_T, each in zip(answers, read, strict=True)
        ]
