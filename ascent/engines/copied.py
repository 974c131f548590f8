"""The native engine on a copy of the policy, so that it samples while the policy is trained."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ascent.engines.native.interruptible import InterruptibleEngine
from ascent.models.model import LanguageModel
from ascent.protocols import Weights


class CopiedPolicyEngine(InterruptibleEngine):
    """`copy` is a second model, loaded as the policy was; `set_weights` gives it the policy's weights of then."""

    def __init__(
        self,
        policy: LanguageModel,
        copy: LanguageModel,
        stop_ids: Iterable[int],
        *,
        max_model_len: int,
    ) -> None:
        super().__init__(copy.eval(), stop_ids, max_model_len=max_model_len)
        self._policy = policy

    def set_weights(self, version: int, tensors: Weights) -> None:
        copy_weights(self._policy, self.model)
        super().set_weights(version, tensors)


@torch.no_grad()
def copy_weights(source: LanguageModel, target: LanguageModel) -> None:
    """In place: whoever reads the tensors of `target` sees the new weights."""
    new = source.module.state_dict()
    for name, weight in target.module.state_dict().items():
        weight.copy_(new[name])
