"""Aggregation of token losses: each mode is a weight per sequence and a share of the denominator.

Axes: T flat tokens, B sequences. With q the loss of a token and n_i the trained tokens of sequence i, the step's value
is
  sum_i weight_i sum_t q  /  max(1, sum_i share_i)
over ALL sequences of the optimizer step, on every rank, in every micro-batch, so the split changes nothing. A sequence
without trained tokens has share 0: it is not counted, unless a custom row asks for it in the three means over sequences
(`count_empty`, as TRL and ms-swift do).

  mode                        weight_i      share_i        used by
  token_mean                  1             n_i            DAPO, PPO, SFT
  token_sum                   1             0              (divisor 1)
  sequence_mean_token_mean    1 / n_i       1              GRPO, GSPO, SAPO
  sequence_mean_token_sum     1             1              REINFORCE, RLOO
  sequence_mean_token_scaled  1 / length    1              Dr. GRPO: a constant, not the batch's own length
  prompt_mean                 1 / n_group   n_i / n_group  ScaleRL: token mean in each group, mean over groups
  group_mean                  1 / (n_i m)   1 / m          REAL: mean over a group's m sequences, mean over groups

Averaging 1/n_i over sequences pushes right answers short and wrong ones long; token_mean weighs a sequence by its
length; the constant divisor does neither.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from ascent.cells import step_statistic
from ascent.maths import masked
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments
from ascent.parameter_ranges import RARE, Count, checked

CountEmpty = Annotated[bool, RARE]


class Weights(NamedTuple):
    weight_B: Tensor
    share_B: Tensor


def token_mean(tokens_B: Tensor) -> Weights:
    """Every trained token of the step counts the same."""
    return Weights(torch.ones_like(tokens_B), tokens_B)


def token_sum(tokens_B: Tensor) -> Weights:
    """The plain sum over tokens; the effective step size grows with the batch."""
    return Weights(torch.ones_like(tokens_B), torch.zeros_like(tokens_B))


@checked
def sequence_mean_token_mean(tokens_B: Tensor, *, count_empty: CountEmpty = False) -> Weights:
    """Mean over each sequence's tokens, then over sequences."""
    return Weights(1 / tokens_B.clamp(min=1), _counted(tokens_B, count_empty))


@checked
def sequence_mean_token_sum(tokens_B: Tensor, *, count_empty: CountEmpty = False) -> Weights:
    """Sum over each sequence's tokens, then the mean over sequences."""
    return Weights(torch.ones_like(tokens_B), _counted(tokens_B, count_empty))


@checked
def sequence_mean_token_scaled(
    tokens_B: Tensor, *, length: Count, count_empty: CountEmpty = False
) -> Weights:
    """Sum over each sequence's tokens divided by a constant length (the generation limit), mean over sequences."""
    return Weights(torch.full_like(tokens_B, 1 / length), _counted(tokens_B, count_empty))


def step_group_tokens(loss_mask_T: Tensor, segments: Segments, groups: Groups) -> Tensor:
    """The trained tokens of each sequence's whole group."""
    return groups.broadcast(groups.sum(tokens_per_sequence(loss_mask_T, segments, torch.float64)))


@step_statistic(group_tokens_B=step_group_tokens)
def prompt_mean(tokens_B: Tensor, group_tokens_B: Tensor) -> Weights:
    """Token mean inside each prompt's group, then the mean over prompts.

    `group_tokens_B` is a step statistic: the trained tokens of the whole group, in any micro-batch.
    """
    per_group_B = 1 / group_tokens_B.to(tokens_B).clamp(min=1)
    return Weights(per_group_B, tokens_B * per_group_B)


def step_group_sequences(loss_mask_T: Tensor, segments: Segments, groups: Groups) -> Tensor:
    """How many sequences of each sequence's group have trained tokens."""
    return groups.broadcast(groups.sum(segments.sum(loss_mask_T) > 0))


@step_statistic(group_sequences_B=step_group_sequences)
def group_mean(tokens_B: Tensor, group_sequences_B: Tensor) -> Weights:
    """Mean over each sequence's tokens, over the sequences of a group, then over groups, however large each is.

    `group_sequences_B` is a step statistic: the group's sequences with trained tokens, in any micro-batch.
    """
    per_group_B = _counted(tokens_B) / group_sequences_B.to(tokens_B).clamp(min=1)
    return Weights(per_group_B / tokens_B.clamp(min=1), per_group_B)


PER_SEQUENCE = (
    sequence_mean_token_mean,
    sequence_mean_token_sum,
    sequence_mean_token_scaled,
    group_mean,
)


def tokens_per_sequence(loss_mask_T: Tensor, segments: Segments, dtype: torch.dtype) -> Tensor:
    return segments.sum(loss_mask_T).to(dtype)


def numerator(loss_T: Tensor, loss_mask_T: Tensor, weight_B: Tensor, segments: Segments) -> Tensor:
    """The weighted sum over trained tokens; entries outside the mask are not read."""
    segments.check(loss_T, loss_mask_T)
    return (segments.sum(masked.kept(loss_T, loss_mask_T)) * weight_B).sum()


def _counted(tokens_B: Tensor, empty: bool = False) -> Tensor:
    if empty:
        return torch.ones_like(tokens_B)
    return (tokens_B > 0).to(tokens_B.dtype)
