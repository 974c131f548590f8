"""Generates completions for prompts with the native engine: one model, loaded once, called batch by batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ascent.data.render import Renderer
from ascent.engines.native.engine import NativeEngine
from ascent.models.load import load
from ascent.models.locate import resolve
from ascent.records import Prompt, Rollout
from ascent.rollouts.generate import RenderedPrompt, SamplingParams, generate
from ascent.setup.policy import device


def weights_of(model: str) -> str:
    """A short sha256 of a model's weights; the name itself for a model on the hub."""
    folder = resolve(model)
    if not isinstance(folder, Path):
        return folder
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


class Generator:
    """A completion depends on (seed, occasion, index in the batch, prompt, sample) and on nothing else in the batch."""

    def __init__(self, model: str, prompts: Sequence[Prompt], settings: SamplingParams) -> None:
        policy = load(model, device=device())
        policy.eval()
        self._tokenizer = policy.tokenizer
        self._renderer = Renderer(policy.tokenizer, train_on="completion")
        self._settings = settings
        self._rendered = {prompt.id: RenderedPrompt(prompt, self._render(prompt)) for prompt in prompts}
        if len(self._rendered) < len(prompts):
            raise ValueError(f"{len(prompts)} prompts have only {len(self._rendered)} ids; give each an id of its own")
        longest = max(len(each.tokens) for each in self._rendered.values()) + settings.max_new_tokens
        self._engine = NativeEngine(policy, self._renderer.stop_ids, max_model_len=longest)

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[int], *, occasion: str) -> list[list[Rollout]]:
        """The completions of every prompt, in the order of `samples`; the sample number GREEDY is decoded greedily."""
        rendered = [self._rendered[prompt.id] for prompt in prompts]
        found = generate(self._engine, rendered, samples, self._settings, noise_key=occasion, decode=self._text)
        return [found[first : first + len(samples)] for first in range(0, len(found), len(samples))]

    def close(self) -> None:
        self._engine.close()

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def _render(self, prompt: Prompt) -> tuple[int, ...]:
        try:
            return self._renderer.prompt(prompt.messages)
        except ValueError as error:
            raise ValueError(f"{prompt.id}: {error}") from None
