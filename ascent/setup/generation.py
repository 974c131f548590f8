"""Generates completions with the native engine, outside of training: one model, loaded once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ascent.data.render import Renderer
from ascent.engines.native.engine import NativeEngine
from ascent.models.adapters import chain
from ascent.models.locate import resolve
from ascent.models.model import max_sequence_length
from ascent.records import Prompt, Rollout
from ascent.rollouts.generate import RenderedPrompt, RolloutStream, SamplingParams, generate_stream
from ascent.setup.environments import env_session
from ascent.setup.policy import load_frozen


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
    """

    def __init__(
        self, model: str, prompts: Sequence[Prompt], settings: SamplingParams, env: Mapping[str, Any] | None = None
    ) -> None:
        policy = load_frozen(model)
        self._tokenizer = policy.tokenizer
        context = max_sequence_length(policy.module.config)
        renderer = Renderer(policy.tokenizer, train_on="completion", context=context)
        room, self._session = settings.max_new_tokens, None
        if env is not None:
            self._session = env_session(env, renderer, room)
            room = self._session.limits.room(room)
        self._settings = replace(settings, env=self._session)
        self._prompts = [self._render(renderer, prompt) for prompt in prompts]
        longest = max(len(each.tokens) for each in self._prompts) + room
        self._engine = NativeEngine(policy, renderer.stop_ids, max_model_len=longest)

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()
        if self._session is not None:
            self._session.close()

    def stream(self, samples: Sequence[int], *, noise_key: str, part: slice = slice(None)) -> RolloutStream:
        """For each prompt of `part` its samples, in order; the sample number GREEDY is decoded greedily."""
        return generate_stream(
            self._engine, self._prompts[part], samples, self._settings, noise_key=noise_key, decode=self._text
        )

    def groups(self, samples: Sequence[int], *, noise_key: str, part: slice = slice(None)) -> list[list[Rollout]]:
        """The rollouts of `stream`, one list for each prompt."""
        found = list(self.stream(samples, noise_key=noise_key, part=part))
        return [found[first : first + len(samples)] for first in range(0, len(found), len(samples))]

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def _render(self, renderer: Renderer, prompt: Prompt) -> RenderedPrompt:
        shown = prompt if self._session is None else self._session.make(prompt).first()
        try:
            return RenderedPrompt(shown, renderer.prompt(shown.messages), prompt)
        except ValueError as error:
            raise ValueError(f"{shown.id}: {error}") from None
