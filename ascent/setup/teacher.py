"""The frozen teacher of distillation; it must share the policy's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ascent.maths.batch import PackedBatch
from ascent.models.model import LanguageModel
from ascent.parallel.ranks import SINGLE, Ranks
from ascent.plan.resolve import Plan
from ascent.setup.critic import check_same_vocab
from ascent.setup.policy import frozen_model, initial
from ascent.update.chunked_distillation import STUDENT
from ascent.update.device import to_device


class Teacher:
    """Adds the teacher's logits at trained tokens to packed batches."""

    def __init__(self, model: LanguageModel, ranks: Ranks = SINGLE) -> None:
        self.model, self._ranks = model, ranks

    def add(self, batches: Sequence[PackedBatch]) -> list[PackedBatch]:
        """Logits are too large to be sent: a rank computes those of the micro-batches that it runs."""
        own = {id(batch) for batch, _ in self._ranks.share(batches)}
        return [
            self(batch) if id(batch) in own else {**batch, "teacher_TV": None} for batch in batches
        ]

    @torch.no_grad()
    def __call__(self, batch: PackedBatch) -> PackedBatch:
        outputs = self.model.outputs(to_device(batch, self.model.device), frozenset({STUDENT}))[
            STUDENT
        ]
        return {**batch, "teacher_TV": outputs.detach()}


def teacher_of(plan: Plan, folder: Path, policy: LanguageModel) -> LanguageModel:
    """ValueError where it reads other words than the policy writes. Its weights are no part of a checkpoint."""
    settings = plan.config.model
    assert settings.teacher is not None, f"row {plan.row.name} needs a teacher"
    found = frozen_model(plan, initial(settings.teacher, folder, plan.config.seed))
    check_same_vocab(
        found, policy, f"the teacher (model.teacher {settings.teacher})", "name another teacher"
    )
    return found.eval()
