"""What peers do and no recipe of ours gives, named one by one, and thin wrappers around our functions that do it.

An adapter asks its case (`case.follows(Convention.X)`) before it does any of this. The runner answers every such case
once more without: what then still agrees is reproduced plainly, the rest counts under the reasons given here.

No conventions are, and stand in adapters without a name: another layout (padding, holes, one number per row, what
stands at places that nothing trains), other names and units of the same number, a count or a weight handed in
ready-made, the peer's dtype, and the rounding of the peers' all-equal groups. A function of ours may have any of its
numbers, since a row in a user's file may, too.

Axes: T flat tokens, B sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import torch
from torch import Tensor

from ascent.advantages import group_baselines
from ascent.cells import Cell, cell
from ascent.losses import aggregation, rollout_correction
from ascent.losses.aggregation import Weights
from ascent.maths.groups import Groups
from tests.golden.cases import COUNT_PLUS_1E8, Case, Tolerance

NO_BOUND = float("inf")


class Convention(Enum):
    """Something that a peer does, and what ours does instead or why we refuse it, in one line."""

    EMPTY_ROWS = "a fully masked row adds its constant -A, or counts in KTO's reference point (TRL); ours add nothing"
    EMPTY_GROUPS = (
        "REAL's mean over groups counts those without a token (ms-swift); ours leaves them out"
    )
    PLUS_1E8 = "counts are n + 1e-8 (verl, OpenRLHF): up to one part in 1e8; ours divides by n"
    CAPPED_KL = "k1 and k2 are held within 10 (OpenRLHF): no gradient where drift is worst; ours has a cap for k3 alone"
    ALONE = (
        "an empty sibling makes a group of one a group of two (verl); ours counts rows with tokens"
    )
    KL_TOKEN_MEAN = "REAL's KL is a token mean (ms-swift); ours is aggregated like the policy term"
    DROPPED_LEAVE = (
        "what is rejected leaves the denominator (ms-swift, verl's bypass); ours keeps it"
    )
    FILTERED_STAY = (
        "truncated answers that are filtered out count in means over rows (ms-swift); ours are gone"
    )
    FLOOR_BEFORE = (
        "the entropy floor is taken before truncated answers leave (ms-swift); ours after"
    )
    ENTROPY_OF_KEPT = "the entropy bonus covers high-entropy tokens alone (TRL); ours all of them"
    GMPO_OF_KEPT = "GMPO's mean covers high-entropy tokens alone (TRL); ours all of them"
    LIKE_POLICY = "entropy and value losses are aggregated like the policy term (verl, OpenRLHF); ours are token means"
    SFT_PER_ROW = "supervised losses may be a mean over rows (OpenRLHF); ours is a token mean"
    ORPO_PROMPT = "ORPO's NLL covers the prompt too (TRL); ours the response"
    GKD_SUM = "GKD may be a plain sum (TRL), whose step grows with the batch; ours is a token mean"
    ACCUMULATED = "the loss is scaled by the micro-batches of a step (TRL, ms-swift); ours is one mean over the step"
    SCORE_LATER = "PPO's score stands one place after the last token (TRL); ours on it"
    KL_IN_REWARD = (
        "k2, k3 or |k1| in the reward (verl, TRL): no KL's gradient comes from there; ours is k1"
    )
    NO_KL = "|log-ratio| as KL (verl), which estimates none; ours is k1"
    ROWS_TO_CONTROLLER = (
        "the controller gets a mean of row means of KL (verl); ours gets a token mean"
    )
    GSPO_CAP = "GSPO's mean log-ratio is held at 10 from above (verl); ours is not"
    AFTER_BASELINE = "clipping and KL come after the group's baseline (OpenRLHF); ours before"
    OBSERVATIONS = "discounts run through observations (OpenRLHF); ours steps over them"
    CENTRED_ONLY = (
        "advantages centered over tokens and not scaled (OpenRLHF); refused: none or both"
    )
    PARTLY_SCORED = (
        "an unscored part is left out of a reward's sum (TRL, ms-swift); ours is then unscored"
    )
    UNJUDGED_LEAVE = (
        "a row without a scored sibling leaves the batch's statistics (TRL); ours is a 0 in them"
    )
    REQUESTED_TWICE = (
        "a request that occurs twice counts once in its group (ms-swift); ours has no such rows"
    )
    STD_OF_ONE = "the std of fewer than two numbers is NaN (TRL); ours is 0"
    BENT_OTHERS = "AlphaPO's reward in losses other than SimPO (TRL); ours is a loss of its own"
    ONE_WEIGHT = "VESPO takes one weight per row once (TRL); ours takes a weight per token"


# The peers' own guard against empty counts, seen in float64 alone: in float32, where they train, it rounds away.
NUMERICAL = frozenset([Convention.PLUS_1E8])
REFUSED = frozenset(Convention) - NUMERICAL


def mean_in_rows(case: Case, *, count_empty: bool = False) -> Cell:
    """Token mean inside a sequence, as sum / (n + 1e-8) (verl, OpenRLHF)."""

    def plus_1e8(tokens_B: Tensor) -> Weights:
        ours = aggregation.sequence_mean_token_mean(tokens_B, count_empty=count_empty)
        return Weights(ours.weight_B * tokens_B / (tokens_B + 1e-8), ours.share_B)

    if case.follows(Convention.PLUS_1E8):
        return cell(plus_1e8)
    return cell(aggregation.sequence_mean_token_mean, count_empty=count_empty)


def room_for_1e8(case: Case) -> Tolerance:
    """Where the peer's 1e-8 sits inside a statistic: one part in 1e8 is allowed instead of expressed."""
    loose = not case.in_float32 and case.follows(Convention.PLUS_1E8)
    return COUNT_PLUS_1E8 if loose else case.tolerance


# A mismatch cell that finds the weights of `sampler_of` again. A weight of 0 was rejected; others are never so small.
READY_MADE = cell(rollout_correction.token_mask, low=1e-8, high=NO_BOUND)


def sampler_of(old_logprobs_T: Tensor, weight_T: Tensor) -> Tensor:
    """The sampler's log-probs from which our cells compute mismatch weights that a case gives ready-made."""
    return old_logprobs_T.detach() - weight_T.log()


def rounding_of_flat_groups(
    advantages_B: Tensor, rewards_B: Tensor, groups: Groups, eps: float
) -> Tensor:
    """How far a peer's advantage may be off 0 where a group's rewards are all equal; ours must be an exact 0 there.

    A peer divides (reward - mean) by (std + eps). The mean of n equal numbers is not that number to the last bit,
    unless few bits are set in it; what is left of it, over eps, is all the peer's answer consists of.
    """
    scored_B = group_baselines.scored(rewards_B)
    flat_G = groups.all_equal(rewards_B, scored_B) & (groups.sum(scored_B) > 1)
    flat_B = groups.broadcast(flat_G) & scored_B
    if not bool((advantages_B[flat_B] == 0).all()):
        raise AssertionError(
            f"an all-equal group must get exactly 0: {advantages_B[flat_B].tolist()}"
        )
    rounds_B = flat_B & (rewards_B * 1024 % 1 != 0)
    return torch.where(
        rounds_B, 4 * torch.finfo(rewards_B.dtype).eps * rewards_B.abs() / eps, 0
    ).double()


def room_for_flat_groups(
    case: Case, advantages_B: Tensor, rewards_B: Tensor, groups: Groups, eps: float
) -> Tolerance:
    """The case's own tolerance, and on rows of all-equal groups the peer's rounding."""
    usual = case.tolerance
    room_B = rounding_of_flat_groups(advantages_B, rewards_B, groups, eps)
    return Tolerance(usual.relative, usual.absolute + room_B)


def room_for_flat_parts(
    usual: Tolerance,
    reward_components_BK: Tensor,
    weights: Sequence[float],
    groups: Groups,
    eps: float,
) -> Tolerance:
    """The same for rewards in parts: their rounding is added up and then shifts every row through the batch's mean."""
    room = usual.absolute
    for part_B, weight in zip(reward_components_BK.unbind(1), weights, strict=True):
        rounding_B = rounding_of_flat_groups(
            group_baselines.group_mean_baseline(part_B, groups).advantages_B, part_B, groups, eps
        )
        room = room + abs(weight) * float(rounding_B.max())
    return Tolerance(usual.relative, room, usual.of_largest)
