"""Generates completions outside of training: one model, loaded once or served."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ascent.data.render import Renderer
from ascent.models.adapters import chain
from ascent.models.locate import resolve
from ascent.models.model import max_sequence_length
from ascent.models.tokenizer import decode, load_tokenizer
from ascent.protocols import Sampler
from ascent.records import Prompt, Rollout
from ascent.rollouts.generate import RenderedPrompt, RolloutStream, SamplingParams, generate_stream
from ascent.setup.environments import env_session
from ascent.setup.policy import load_frozen
from ascent.setup.samplers import Engine, ServedPolicy, fixed_sampler, local_sampler


def refuse_servers(engine: str, models: Sequence[str]) -> None:
    """ValueError where several models would be sampled from the same servers, which have one."""
    if len(models) > 1 and Engine.parse(engine).servers:
        raise ValueError(
            f"engine={engine} names servers of one model, but there are {len(models)}; leave out the URLs, and a "
            "server is started for each"
        )


def weights_of(model: str) -> str:
    """A short sha256 of a model's weights; the name itself for a model on the hub."""
    folder = resolve(model)
    if not isinstance(folder, Path):
        return folder
    digest = hashlib.sha256()
    folders = [each for each in chain(folder) if isinstance(each, Path)]
    for path in (path for each in folders for path in sorted(each.glob("*.safetensors"))):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


class Generator:
    """Samples completions of `prompts`, in one turn or with the environment of section `env`.

    A completion depends on (seed, noise key, index in the call, prompt, sample) and on nothing else in the call.
    `engine` is as for `samplers.Engine.parse`; of a model on servers, only the tokenizer is loaded here.
    """

    def __init__(
        self,
        model: str,
        prompts: Sequence[Prompt],
        settings: SamplingParams,
        env: Mapping[str, Any] | None = None,
        engine: str = "native",
    ) -> None:
        chosen = Engine.parse(engine)
        policy = None if chosen.is_remote else load_frozen(model)
        self._tokenizer = policy.tokenizer if policy is not None else load_tokenizer(resolve(model))
        context = max_sequence_length(policy.module.config) if policy is not None else None
        renderer = Renderer(self._tokenizer, train_on="completion", context=context)
        room, self._session = settings.max_new_tokens, None
        if env is not None:
            self._session = env_session(env, renderer, room)
            room = self._session.limits.room(room)
        self._settings = replace(settings, env=self._session)
        self._prompts = [self._render(renderer, prompt) for prompt in prompts]
        longest = max(len(each.tokens) for each in self._prompts) + room
        self._engine: Sampler
        if policy is not None:
            self._engine = local_sampler(chosen.name, policy, renderer, longest)
        else:
            served = ServedPolicy(self._tokenizer, renderer.stop_ids, longest, "auto")
            self._engine = fixed_sampler(chosen, resolve(model), served)

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()
        if self._session is not None:
            self._session.close()

    def stream(
        self, samples: Sequence[int], *, noise_key: str, part: slice = slice(None)
    ) -> RolloutStream:
        """For each prompt of `part` its samples, in order; the sample number GREEDY is decoded greedily."""
        return generate_stream(
            self._engine,
            self._prompts[part],
            samples,
            self._settings,
            noise_key=noise_key,
            decode=self._text,
        )

    def groups(
        self, samples: Sequence[int], *, noise_key: str, part: slice = slice(None)
    ) -> list[list[Rollout]]:
        """The rollouts of `stream`, one list for each prompt."""
        found = list(self.stream(samples, noise_key=noise_key, part=part))
        return [found[first : first + len(samples)] for first in range(0, len(found), len(samples))]

    def _text(self, tokens: Sequence[int]) -> str:
        return decode(self._tokenizer, tokens)

    def _render(self, renderer: Renderer, prompt: Prompt) -> RenderedPrompt:
        shown = prompt if self._session is None else self._session.make(prompt).first()
        try:
            return RenderedPrompt(shown, renderer.prompt(shown.messages), prompt)
        except ValueError as error:
            raise ValueError(f"{shown.id}: {error}") from None
