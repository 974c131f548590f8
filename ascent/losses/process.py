"""Process reward models: is this step right? One judgement at the end of every step of a solution.

Axes: T flat tokens, C classes. `step_logits_TC` are the model's logits over the classes at each position (a head of its
own, or the columns of a few words of the vocabulary); only positions that end a step count.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.losses.loss import ItemLosses
from ascent.maths.metrics import mean_of


def prm_hard(step_logits_TC: Tensor, step_labels_T: Tensor, step_ends_T: Tensor) -> ItemLosses:
    """Cross-entropy of each step's class, `step_labels_T` from 0; a negative label is unknown and not counted.

    Let's verify step by step, arXiv 2305.20050. Logits (2, 0) for a step of class 0: .126928.
    """
    counted_T = step_ends_T & (step_labels_T >= 0)
    logs_TC = torch.where(counted_T.unsqueeze(-1), step_logits_TC, 0).log_softmax(-1)
    labels_T = torch.where(counted_T, step_labels_T, 0).long()
    losses_T = -logs_TC.gather(-1, labels_T.unsqueeze(-1)).squeeze(-1)
    right_T = logs_TC.argmax(-1) == labels_T
    return ItemLosses(losses_T, counted_T, {"steps/accuracy": mean_of(right_T, counted_T)})


def prm_soft(step_logits_TC: Tensor, step_labels_T: Tensor, step_ends_T: Tensor) -> ItemLosses:
    """Cross-entropy against the probability that a step is right (class 0 of two): the share of rollouts that succeed.

    Math-Shepherd, arXiv 2312.08935. A label of NaN is unknown and not counted. Logits (2, 0), label .75: .626928.
    """
    if step_logits_TC.shape[-1] != 2:
        raise ValueError(
            f"{step_logits_TC.shape[-1]} classes; soft labels are the probability of the first of two"
        )
    counted_T = step_ends_T & ~torch.isnan(step_labels_T)
    logs_TC = torch.where(counted_T.unsqueeze(-1), step_logits_TC, 0).log_softmax(-1)
    labels_T = torch.where(counted_T, step_labels_T, 0).to(logs_TC.dtype)
    losses_T = -labels_T * logs_TC[:, 0] - (1 - labels_T) * logs_TC[:, 1]
    right_T = (logs_TC[:, 1] > logs_TC[:, 0]) == (labels_T < 0.5)
    return ItemLosses(losses_T, counted_T, {"steps/accuracy": mean_of(right_T, counted_T)})
