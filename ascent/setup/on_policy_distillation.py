"""On-policy distillation (GKD, arXiv 2306.13649): the student answers a fraction of the prompts itself.

Which records are answered, and the sampling noise, depend on (seed, step, index) alone: a resumed run draws the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ascent.data.prepare import Item
from ascent.data.render import Rendered
from ascent.parallel.ranks import SINGLE, Ranks
from ascent.protocols import Sampler
from ascent.records import Completion, Request


@dataclass(frozen=True)
class OnPolicyAnswers:
    """Replaces the answers of some of a step's items; `longest` bounds prompt and answer together."""

    sampler: Sampler
    fraction: float
    seed: int
    temperature: float
    max_new_tokens: int
    longest: int
    ranks: Ranks = SINGLE

    def __call__(self, items: Sequence[Item], step: int) -> list[Item]:
        chosen = {
            place: item for place, item in enumerate(items) if self._is_on_policy(item, step, place)
        }
        requests = [self._request(item.sequences[0], step, place) for place, item in chosen.items()]
        sampled = self.ranks.concat(
            list(self.sampler.sample(self.ranks.part(requests))), "the student's answers"
        )
        answers = {each.prompt_id: each for each in sampled}
        written = {
            place: replace(
                item, sequences=(_written(item.sequences[0], answers[_name(step, place)]),)
            )
            for place, item in chosen.items()
        }
        return [written.get(place, item) for place, item in enumerate(items)]

    def _is_on_policy(self, item: Item, step: int, place: int) -> bool:
        digest = hashlib.blake2b(f"{self.seed}/{step}/{place}".encode(), digest_size=8).digest()
        return (
            0 < item.sequences[0].prompt_length < self.longest
            and int.from_bytes(digest) < self.fraction * 2**64
        )

    def _request(self, own: Rendered, step: int, place: int) -> Request:
        budget = min(self.max_new_tokens, self.longest - own.prompt_length)
        tokens = tuple(int(token) for token in own.tokens[: own.prompt_length])
        return Request(_name(step, place), 0, tokens, budget, self.seed, self.temperature)


def _name(step: int, place: int) -> str:
    return f"own/{step}/{place}"


def _written(own: Rendered, answer: Completion) -> Rendered:
    tokens = np.concatenate(
        [own.tokens[: own.prompt_length], np.array(answer.tokens, dtype=own.tokens.dtype)]
    )
    return Rendered(tokens, np.arange(len(tokens)) >= own.prompt_length, own.prompt_length)
