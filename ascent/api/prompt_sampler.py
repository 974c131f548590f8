"""Samples rollouts of any prompts with the engine of a recipe, in one turn or with an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from ascent.api.objects import Collector
from ascent.data.columns import messages as read_messages
from ascent.data.errors import RowError
from ascent.data.render import Renderer
from ascent.models.model import LanguageModel
from ascent.models.tokenizer import decode
from ascent.plan.resolve import Plan
from ascent.protocols import Sampler
from ascent.records import Message, Prompt, Rollout
from ascent.rollouts.generate import GREEDY, RenderedPrompt, SamplingParams, generate
from ascent.rollouts.multi_turn import EnvSession
from ascent.setup.environments import env_session
from ascent.setup.samplers import local_sampler

PromptLike = str | Prompt | Sequence[Message | Mapping[str, str]]
ROUND_UP = 256  # tokens: a second engine leaves room for somewhat longer prompts


class PromptSampler:
    """Holds the engine, which is made again where a sequence is longer than all before, and the environment.

    `longest` is the length that the engine is made for. How many sequences it runs at once follows from it, and without
    exact arithmetic the last bits of log-probs do, so a loop that is restored needs it.
    """

    def __init__(
        self, plan: Plan, model: LanguageModel, renderer: Renderer, env: Any = None
    ) -> None:
        self._plan, self._model, self._renderer, self._env = plan, model, renderer, env
        self._engine: Sampler | None = None
        self.longest = 0

    def sample(
        self, prompts: Sequence[PromptLike], n: int, *, greedy: bool, noise_key: str, version: int
    ) -> list[Rollout]:
        settings, session = self._plan.config.rollouts, self._session
        rendered = [self._render(index, each) for index, each in enumerate(prompts)]
        room = (
            settings.max_new_tokens
            if session is None
            else session.limits.room(settings.max_new_tokens)
        )
        engine = self._engine_for(max(len(each.tokens) for each in rendered) + room)
        engine.set_weights(version, {})
        params = SamplingParams(
            settings.max_new_tokens,
            self._plan.config.seed,
            settings.temperature,
            settings.top_p,
            session,
        )
        return generate(
            engine,
            rendered,
            [GREEDY] if greedy else range(n),
            params,
            noise_key=noise_key,
            decode=self._text,
        )

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None
        session = self.__dict__.pop("_session", None)
        if session is not None:
            session.close()

    @cached_property
    def _session(self) -> EnvSession | None:
        if self._env is None:
            return None
        found = Collector()
        section = found.replace({"env": self._env})["env"]
        return env_session(
            section, self._renderer, self._plan.config.rollouts.max_new_tokens, found.objects
        )

    def _render(self, index: int, prompt: PromptLike) -> RenderedPrompt:
        made_from = as_prompt(index, prompt)
        shown = made_from
        if self._session is not None:
            shown = replace(self._session.make(made_from).first(), columns=made_from.columns)
        return RenderedPrompt(shown, self._renderer.prompt(shown.messages), made_from)

    def _text(self, tokens: Sequence[int]) -> str:
        return decode(self._model.tokenizer, tokens)

    def _engine_for(self, length: int) -> Sampler:
        if length > self.longest:
            self.longest = -(-length // ROUND_UP) * ROUND_UP if self.longest else length
            if self._engine is not None:
                self._engine.close()
                self._engine = None
        if self._engine is None:
            engine = self._plan.config.rollouts.engine
            self._engine = local_sampler(engine, self._model, self._renderer, self.longest)
        return self._engine


def as_prompt(index: int, prompt: PromptLike) -> Prompt:
    """A text, messages or a record as a record; `index` is the id where there is none."""
    if isinstance(prompt, Prompt):
        return prompt
    messages = [Message("user", prompt)] if isinstance(prompt, str) else prompt
    if isinstance(messages, Mapping) or not all(
        isinstance(each, Message | Mapping) for each in messages
    ):
        raise ValueError(
            f"prompt {index} is {prompt!r:.80}; it must be a text, a list of messages or a Prompt. Rows of a dataset: "
            "ascent.load_data(rows)"
        )
    try:
        return Prompt(str(index), _read(messages))
    except RowError as error:
        raise ValueError(f"prompt {index}: {error}") from error


def _read(messages: Sequence[Any]) -> tuple[Message, ...]:
    """Messages that are no records yet are read as those of data, tool calls included."""
    given = [each for each in messages if not isinstance(each, Message)]
    read = iter(read_messages(given, "messages") if given else ())
    return tuple(each if isinstance(each, Message) else next(read) for each in messages)
