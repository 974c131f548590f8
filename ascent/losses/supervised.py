"""Supervised losses: the negative log-likelihood of some tokens.

Axes: T flat tokens, B sequences, P pairs, X flat tokens of pretraining text. The denominator is the number of those
tokens in the whole optimizer step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.losses.loss import ItemLosses
from ascent.maths import masked
from ascent.maths.segments import Segments


def nll(logprobs_T: Tensor, loss_mask_T: Tensor) -> ItemLosses:
    """Negative log-likelihood of every trained token (SFT)."""
    return _nll(logprobs_T, loss_mask_T)


def correct_nll(
    logprobs_T: Tensor, correct_B: Tensor, loss_mask_T: Tensor, segments: Segments
) -> ItemLosses:
    """Negative log-likelihood of the completions that were right (VAPO's positive-example loss)."""
    return _nll(logprobs_T, loss_mask_T & segments.broadcast(correct_B > 0))


def chosen_nll(
    logprobs_T: Tensor, chosen_B: Tensor, loss_mask_T: Tensor, segments: Segments
) -> ItemLosses:
    """Negative log-likelihood of the preferred responses (ORPO, CPO)."""
    return _nll(logprobs_T, loss_mask_T & segments.broadcast(chosen_B))


def gold_nll(
    logprobs_T: Tensor, gold_B: Tensor, loss_mask_T: Tensor, segments: Segments
) -> ItemLosses:
    """Negative log-likelihood of a third, gold answer beside a pair (TPO)."""
    return _nll(logprobs_T, loss_mask_T & segments.broadcast(gold_B))


def reference_likelihood(
    logprobs_B: Tensor,
    lengths_B: Tensor,
    from_reference_B: Tensor,
    chosen_P: Tensor,
    rejected_P: Tensor,
) -> ItemLosses:
    """log pi of the pair's response that the REFERENCE sampled, to be lowered: XPO's bonus for exploring.

    arXiv 2405.21046. One loss per pair, whichever side won; its weight is tiny (1e-5).
    """
    counted_P = (lengths_B[chosen_P] > 0) & (lengths_B[rejected_P] > 0)
    losses_P = torch.where(from_reference_B[chosen_P], logprobs_B[chosen_P], logprobs_B[rejected_P])
    return ItemLosses(losses_P, counted_P, {})


def pretraining_nll(pretraining_logprobs_X: Tensor, pretraining_trained_X: Tensor) -> ItemLosses:
    """Negative log-likelihood of pretraining text mixed into the step (InstructGPT's PPO-ptx)."""
    return _nll(pretraining_logprobs_X, pretraining_trained_X)


def _nll(logprobs_T: Tensor, counted_T: Tensor) -> ItemLosses:
    return ItemLosses(-masked.kept(logprobs_T, counted_T), counted_T, {})
