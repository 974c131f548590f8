"""Supervised terms: the negative log-likelihood of some tokens, and which tokens those are.

Axes: T flat tokens, B sequences, X flat tokens of pretraining text. The denominator is the number of those tokens in
the whole optimizer step.
"""

from __future__ import annotations

from torch import Tensor

from ascent.losses.loss import Each
from ascent.maths import masked
from ascent.maths.segments import Segments
from ascent.maths.tally import average


def nll(logprobs_T: Tensor, trained_T: Tensor) -> Each:
    """Negative log-likelihood of every trained token (SFT)."""
    return _nll(logprobs_T, trained_T, "nll")


def correct_nll(logprobs_T: Tensor, correct_B: Tensor, trained_T: Tensor, segments: Segments) -> Each:
    """Negative log-likelihood of the completions that were right (VAPO's positive-example loss)."""
    return _nll(logprobs_T, trained_T & segments.spread(correct_B > 0), "correct_nll")


def chosen_nll(logprobs_T: Tensor, chosen_B: Tensor, trained_T: Tensor, segments: Segments) -> Each:
    """Negative log-likelihood of the preferred responses (ORPO, CPO)."""
    return _nll(logprobs_T, trained_T & segments.spread(chosen_B), "chosen_nll")


def pretraining_nll(pretraining_logprobs_X: Tensor, pretraining_trained_X: Tensor) -> Each:
    """Negative log-likelihood of pretraining text mixed into the step (InstructGPT's PPO-ptx)."""
    return _nll(pretraining_logprobs_X, pretraining_trained_X, "pretraining_nll")


def _nll(logprobs_T: Tensor, counted_T: Tensor, name: str) -> Each:
    losses_T = -masked.kept(logprobs_T, counted_T)
    return Each(losses_T, counted_T, {name: average(losses_T, counted_T)})
