"""A sampler of the geometric mixture of a policy and its reference: the opponent of Nash-MD (arXiv 2312.00886).

At every position the logits of both are averaged with fixed weights and the next token is sampled from their softmax,
so the mixture is normalized per token: p(token) ~ policy(token)^(1 - share) * reference(token)^share. Both models run
with their current weights; nothing is copied. Axes: B requests, L padded positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from ascent.engines.hf import HFSampler, next_logits, stock_attention
from ascent.models.lora import WithoutAdapter, adapter_off
from ascent.models.model import LanguageModel

SHARE = 0.5  # of the reference: even, as in TRL; recipes have no key for it


class GeometricMixtureSampler(HFSampler):
    """Implements `protocols.Sampler`. The reference is a second model, or the policy without its adapter."""

    def __init__(
        self,
        policy: LanguageModel,
        reference: LanguageModel | WithoutAdapter,
        stop_ids: Iterable[int],
        *,
        share: float = SHARE,
        batch_size: int = 64,
    ) -> None:
        super().__init__(policy, stop_ids, batch_size=batch_size)
        if not 0 <= share <= 1:
            raise ValueError(f"share={share}, but the reference's share must lie between 0 and 1")
        self.reference, self.share = reference, share

    @contextmanager
    def _attention(self) -> Iterator[None]:
        second = self.reference if isinstance(self.reference, LanguageModel) else self.model
        with stock_attention(self.model), stock_attention(second):
            yield

    def _logits(self, tokens_BL: Tensor, mask_BL: Tensor, cache: Any) -> tuple[Tensor, Any]:
        policy_cache, reference_cache = cache or (None, None)
        policy_BV, policy_cache = next_logits(self.model, tokens_BL, mask_BL, policy_cache)
        if isinstance(self.reference, LanguageModel):
            reference_BV, reference_cache = next_logits(
                self.reference, tokens_BL, mask_BL, reference_cache
            )
        else:
            with adapter_off(self.model) as base:
                reference_BV, reference_cache = next_logits(
                    base, tokens_BL, mask_BL, reference_cache
                )
        return (1 - self.share) * policy_BV + self.share * reference_BV, (
            policy_cache,
            reference_cache,
        )
