"""Losses that compare the student's whole distribution with a teacher's: asked of a few tokens at a time.

The loss of such a row is a function of every token's two distributions and of nothing else, so that it can be computed
piece by piece, and no matrix of logits is ever whole (`models.distributions`). Axes: T flat tokens, N trained ones,
R of these at once, V vocabulary.
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
    """The cell on all trained tokens, as if their logits lay side by side."""
    student, teacher, loss_mask_T = known[STUDENT], known[TEACHER], known["loss_mask_T"]
    if isinstance(student, Tensor):  # a stand-in by which a step's tokens are counted
        return _each(loss, {**known, TEACHER: student})
    rows_N = loss_mask_T.nonzero()[:, 0]
    if not student.count == teacher.count == rows_N.numel():
        raise ValueError(
            f"{student.count} distributions of the student and {teacher.count} of the teacher for {rows_N.numel()} "
            "trained tokens; both must have seen the same batch"
        )
    shared = min(student.vocab_size, teacher.vocab_size)
    student, teacher = student.truncate_vocab(shared), teacher.truncate_vocab(shared)
    said: dict[int, Metrics] = {}  # by the first row of a piece: the backward pass computes the same again

    def of(rows: slice, logits_RV: Tensor) -> Tensor:
        trained_R = torch.ones(logits_RV.shape[0], dtype=torch.bool, device=logits_RV.device)
        piece = _each(loss, {STUDENT: logits_RV, TEACHER: teacher.logits(rows), "loss_mask_T": trained_R})
        said[rows.start] = piece.metrics
        return piece.losses

    losses_N = student.map_rows(of)
    losses_T = losses_N.new_zeros(loss_mask_T.shape).index_copy(0, rows_N, losses_N)
    return ItemLosses(losses_T, loss_mask_T, merge(said.values()))


def _each(loss: Cell, known: Mapping[str, Any]) -> ItemLosses:
    found: ItemLosses = loss(known)
    return found
