"""Conventions that several peers share, as thin wrappers around our functions. None of them belongs in the library.

Axes: T flat tokens, B sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ascent.advantages import group
from ascent.losses import aggregate, kl
from ascent.losses.aggregate import Weights
from ascent.losses.mismatch import Correction
from ascent.maths.groups import Groups
from tests.golden.cases import Case, Tolerance


def mean_over_count_plus_1e8(tokens_B: Tensor) -> Weights:
    """Token mean inside a sequence as sum / (n + 1e-8) (verl, OpenRLHF)."""
    ours = aggregate.sequence_mean_token_mean(tokens_B)
    return Weights(ours.weight_B * tokens_B / (tokens_B + 1e-8), ours.share_B)


def every_row_counts(mode: Callable[..., Weights]) -> Callable[..., Weights]:
    """A sequence mean whose denominator also counts fully masked rows (TRL, ms-swift)."""

    def counted(tokens_B: Tensor) -> Weights:
        return Weights(mode(tokens_B).weight_B, torch.ones_like(tokens_B))

    return counted


def scaled_by(length: int) -> Callable[..., Weights]:
    """A token sum over a constant, as a mode that can be wrapped."""

    def mode(tokens_B: Tensor) -> Weights:
        return aggregate.sequence_mean_token_scaled(tokens_B, length=length)

    return mode


def given_weights(old_T: Tensor, weight_T: Tensor) -> Correction:
    """Mismatch weights that the peer was handed ready-made."""
    return Correction(weight_T, old_T.detach(), {})


def k3_capped(logprobs_T: Tensor, reference_T: Tensor, trained_T: Tensor) -> Tensor:
    """k3 with its value held in +-10, so without gradient beyond (verl, ms-swift; OpenRLHF for every estimator)."""
    return kl.k3(logprobs_T, reference_T, trained_T).clamp(-10, 10)


def rounding_of_flat_groups(advantages_B: Tensor, rewards_B: Tensor, groups: Groups, eps: float) -> Tensor:
    """How far a peer's advantage may be off 0 where a group's rewards are all equal; ours must be an exact 0 there.

    A peer divides (reward - mean) by (std + eps). The mean of n equal numbers is not that number to the last bit,
    unless few bits are set in it; what is left of it, over eps, is all the peer's answer consists of.
    """
    scored_B = group.scored(rewards_B)
    flat_G = groups.spans_nothing(rewards_B, scored_B) & (groups.sum(scored_B) > 1)
    flat_B = groups.spread(flat_G) & scored_B
    if not bool((advantages_B[flat_B] == 0).all()):
        raise AssertionError(f"an all-equal group must get exactly 0: {advantages_B[flat_B].tolist()}")
    rounds_B = flat_B & (rewards_B * 1024 % 1 != 0)
    return torch.where(rounds_B, 4 * torch.finfo(rewards_B.dtype).eps * rewards_B.abs() / eps, 0).double()


def room_for_flat_groups(case: Case, advantages_B: Tensor, rewards_B: Tensor, groups: Groups, eps: float) -> Tolerance:
    """The case's own tolerance, and on rows of all-equal groups the peer's rounding."""
    usual = case.tolerance
    room_B = rounding_of_flat_groups(advantages_B, rewards_B, groups, eps)
    return Tolerance(usual.relative, usual.absolute + room_B)


def room_for_flat_parts(
    usual: Tolerance, parts_BK: Tensor, weights: Sequence[float], groups: Groups, eps: float
) -> Tolerance:
    """The same for rewards in parts: their rounding is added up and then shifts every row through the batch's mean."""
    room = usual.absolute
    for part_B, weight in zip(parts_BK.unbind(1), weights, strict=True):
        rounding_B = rounding_of_flat_groups(group.centre(part_B, groups).advantages_B, part_B, groups, eps)
        room = room + abs(weight) * float(rounding_B.max())
    return Tolerance(usual.relative, room, usual.of_largest)


def raw_reward_in_groups_of_one(advantages_B: Tensor, rewards_B: Tensor, groups: Groups) -> Tensor:
    """verl gives a completion without siblings its own reward as advantage; we give it 0."""
    alone_B = groups.spread(groups.sum(torch.ones_like(groups.ids_B))) == 1
    return torch.where(alone_B, rewards_B, advantages_B)
