"""A student that answers again what its records ask: distillation on the student's own text (GKD, arXiv 2306.13649).

A share of every step's records keeps its question and gets an answer of the policy as it is now. Which ones, and the
sampling noise, depend on (seed, step, place) alone, so that a resumed run draws the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ascent.data.prepare import Item
from ascent.data.render import Rendered
from ascent.protocols import Sampler
from ascent.records import Completion, Request


@dataclass(frozen=True)
class OnPolicyAnswers:
    """Rewrites a step's items; `longest` bounds question and answer together."""

    sampler: Sampler
    share: float
    seed: int
    temperature: float
    max_new_tokens: int
    longest: int

    def __call__(self, items: Sequence[Item], step: int) -> list[Item]:
        chosen = {place: item for place, item in enumerate(items) if self._is_own(item, step, place)}
        asked = [self._request(item.sequences[0], step, place) for place, item in chosen.items()]
        answers = {each.prompt_id: each for each in self.sampler.sample(asked)}
        written = {
            place: replace(item, sequences=(_written(item.sequences[0], answers[_name(step, place)]),))
            for place, item in chosen.items()
        }
        return [written.get(place, item) for place, item in enumerate(items)]

    def _is_own(self, item: Item, step: int, place: int) -> bool:
        digest = hashlib.blake2b(f"{self.seed}/{step}/{place}".encode(), digest_size=8).digest()
        return 0 < item.sequences[0].prompt < self.longest and int.from_bytes(digest) < self.share * 2**64

    def _request(self, own: Rendered, step: int, place: int) -> Request:
        budget = min(self.max_new_tokens, self.longest - own.prompt)
        tokens = tuple(int(token) for token in own.tokens[: own.prompt])
        return Request(_name(step, place), 0, tokens, budget, self.seed, self.temperature)


def _name(step: int, place: int) -> str:
    return f"own/{step}/{place}"


def _written(own: Rendered, answer: Completion) -> Rendered:
    tokens = np.concatenate([own.tokens[: own.prompt], np.array(answer.tokens, dtype=own.tokens.dtype)])
    return Rendered(tokens, np.arange(len(tokens)) >= own.prompt, own.prompt)
