"""Learning from a teacher's whole distribution. Axes: T flat tokens, V vocabulary.

`logits_TV` and `teacher_TV` at a token are the distributions it was (or would have been) drawn from, as everything per
token is aligned here. Only the student's carry a gradient. One loss per trained token; the denominator counts them.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from ascent.losses.loss import ItemLosses
from ascent.maths import divergence
from ascent.parameter_ranges import RARE, Fraction, Positive, checked


@checked
def gkd(
    logits_TV: Tensor,
    teacher_TV: Tensor,
    loss_mask_T: Tensor,
    *,
    beta: Fraction = 0.5,
    temperature: Annotated[Positive, RARE] = 1.0,
) -> ItemLosses:
    """The generalized Jensen-Shannon divergence between student and teacher (GKD, arXiv 2306.13649).

    beta 0 is KL(teacher || student), which covers the teacher; 1 is KL(student || teacher), which picks one mode.
    """
    student_TV, teacher_TV = (
        _trained(logits_TV, loss_mask_T),
        _trained(teacher_TV.detach(), loss_mask_T),
    )
    loss_T = divergence.jensen_shannon(student_TV, teacher_TV, beta=beta, temperature=temperature)
    return ItemLosses(loss_T, loss_mask_T, {})


@checked
def kd(
    logits_TV: Tensor,
    teacher_TV: Tensor,
    loss_mask_T: Tensor,
    *,
    temperature: Annotated[Positive, RARE] = 1.0,
) -> ItemLosses:
    """Cross-entropy from the teacher's distribution to the student's: KL(teacher || student) plus a constant.

    Hinton et al., 2015 (arXiv 1503.02531). S = (.5, .5), T = (.9, .1): log 2 = .693147. Tokens whose student logit is
    -inf contribute 0: nothing the student does could give them mass.
    """
    student_TV, teacher_TV = (
        _trained(logits_TV, loss_mask_T),
        _trained(teacher_TV.detach(), loss_mask_T),
    )
    loss_T = divergence.cross_entropy(
        teacher_TV, student_TV, temperature=temperature, skip_impossible=True
    )
    return ItemLosses(loss_T, loss_mask_T, {})


def _trained(logits_TV: Tensor, loss_mask_T: Tensor) -> Tensor:
    """Zeros outside the mask: whatever lies there, NaN included, is not read and gets no gradient."""
    return torch.where(loss_mask_T.unsqueeze(-1), logits_TV, 0)
