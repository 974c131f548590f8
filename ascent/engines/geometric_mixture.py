"""A sampler of the geometric mixture of a policy and its reference: the opponent of Nash-MD (arXiv 2312.00886).

At every position the logits of both are averaged with fixed weights and the next token is drawn from softmax of that,
so the mixture is normalized token by token: p(token) ~ policy(token)^(1 - share) * reference(token)^share. Both models
are asked with their weights as they are now; nothing is copied. Axes: B requests, L padded positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from ascent.engines.hf import HFSampler, next_logits, stock_attention
from ascent.models.lora import WithoutAdapter, adapter_off
from ascent.models.model import LanguageModel

SHARE = 0.5  # the reference's: even, as in TRL; a constant, for recipes have no key for it


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
            raise ValueError(f"share={share}, but the reference's part of a mixture lies between 0 and 1")
        self.reference, self.share = reference, share

    @contextmanager
    def _switched(self) -> Iterator[None]:
        second = self.reference if isinstance(self.reference, LanguageModel) else self.model
        with stock_attention(self.model), stock_attention(second):
            yield

    def _logits(self, tokens_BL: Tensor, seen_BL: Tensor, cache: Any) -> tuple[Tensor, Any]:
        own, theirs = cache or (None, None)
        own_BV, own = next_logits(self.model, tokens_BL, seen_BL, own)
        if isinstance(self.reference, LanguageModel):
            theirs_BV, theirs = next_logits(self.reference, tokens_BL, seen_BL, theirs)
        else:
            with adapter_off(self.model) as base:
                theirs_BV, theirs = next_logits(base, tokens_BL, seen_BL, theirs)
        return (1 - self.share) * own_BV + self.share * theirs_BV, (own, theirs)
