"""A model that answers prompts, with the native engine: loaded once, asked in pieces."""

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
    """A name for a model's weights as they are now: their sha256, or the hub's name."""
    folder = resolve(model)
    if not isinstance(folder, Path):
        return folder
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


class Generator:
    """Answers do not depend on what else is asked, but on (seed, occasion, place in the piece, prompt, sample)."""

    def __init__(self, model: str, prompts: Sequence[Prompt], settings: SamplingParams) -> None:
        policy = load(model, device=device())
        policy.eval()
        self._tokenizer = policy.tokenizer
        self._renderer = Renderer(policy.tokenizer, train_on="completion")
        self._settings = settings
        self._asked = {prompt.id: RenderedPrompt(prompt, self._rendered(prompt)) for prompt in prompts}
        if len(self._asked) < len(prompts):
            raise ValueError(f"{len(prompts)} prompts have only {len(self._asked)} ids; give each an id of its own")
        longest = max(len(each.tokens) for each in self._asked.values()) + settings.max_new_tokens
        self._engine = NativeEngine(policy, self._renderer.stop_ids, longest_sequence=longest)

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[int], *, occasion: str) -> list[list[Rollout]]:
        """For every prompt its answers, in the order of `samples` (GREEDY asks for the likeliest tokens)."""
        asked = [self._asked[prompt.id] for prompt in prompts]
        found = generate(self._engine, asked, samples, self._settings, occasion=occasion, text=self._text)
        return [found[first : first + len(samples)] for first in range(0, len(found), len(samples))]

    def close(self) -> None:
        self._engine.close()

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def _rendered(self, prompt: Prompt) -> tuple[int, ...]:
        try:
            return self._renderer.prompt(prompt.messages)
        except ValueError as error:
            raise ValueError(f"{prompt.id}: {error}") from None
