"""Distillation losses on full distributions, computed a chunk of tokens at a time.

Such a loss is a function of each token's two distributions alone, so the (T, V) logits never exist as a whole
(`models.chunked_logits`). Axes: T flat tokens, N trained tokens, R tokens of a chunk, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ascent.cells import Cell
from ascent.losses.loss import ItemLosses
from ascent.maths.metrics import Metrics, merge

STUDENT, TEACHER = "logits_TV", "teacher_TV"


def chunked_distillation(loss: Cell, known: Mapping[str, Any]) -> ItemLosses:
    """The loss cell on all trained tokens."""
    student, teacher, loss_mask_T = known[STUDENT], known[TEACHER], known["loss_mask_T"]
    if isinstance(student, Tensor):  # dummy outputs, for counting
        return _call(loss, {**known, TEACHER: student})
    rows_N = loss_mask_T.nonzero()[:, 0]
    if not student.count == teacher.count == rows_N.numel():
        raise ValueError(
            f"{student.count} distributions of the student and {teacher.count} of the teacher for {rows_N.numel()} "
            "trained tokens; both must have seen the same batch"
        )
    shared = min(student.vocab_size, teacher.vocab_size)
    student, teacher = student.truncate_vocab(shared), teacher.truncate_vocab(shared)
    metrics: dict[
        int, Metrics
    ] = {}  # by the first row of a chunk, because the backward pass computes them again

    def chunk_losses(rows: slice, logits_RV: Tensor) -> Tensor:
        trained_R = torch.ones(logits_RV.shape[0], dtype=torch.bool, device=logits_RV.device)
        chunk = _call(
            loss, {STUDENT: logits_RV, TEACHER: teacher.logits(rows), "loss_mask_T": trained_R}
        )
        metrics[rows.start] = chunk.metrics
        return chunk.losses

    losses_N = student.map_rows(chunk_losses)
    losses_T = losses_N.new_zeros(loss_mask_T.shape).index_copy(0, rows_N, losses_N)
    return ItemLosses(losses_T, loss_mask_T, merge(metrics.values()))


def _call(loss: Cell, known: Mapping[str, Any]) -> ItemLosses:
    found: ItemLosses = loss(known)
    return found
