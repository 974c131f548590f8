"""The variance-optimal baseline per token position: the group's mean reward-to-go, weighted by gradient energy.

Axes: T flat tokens, B sequences, S (group, position) slots. The energy of a token's gradient is about
e = 1 - 2 pi + sum_v pi(v)^2; W is its running sum over the sequence. At each position the baseline of a group is the
mean of the members' reward-to-go G, weighted by W (verl's optimal token baseline).

Worked example, one group, G = (1, 1) and (0, 0), e = (.5, .3) and (.2, .4): W = (.5, .8) and (.2, .6), baselines
.714286 and .571429.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from ascent.advantages.advantage import TokenAdvantage
from ascent.advantages.returns import reward_to_go
from ascent.maths.groups import Groups
from ascent.maths.metrics import mean_of
from ascent.maths.reverse_scan import reverse_scan
from ascent.maths.segments import Segments
from ascent.parameter_ranges import RARE, Positive, checked

GUARD = 20.0  # the same as in `losses.ratios`


@checked
def optimal_token_baseline(
    rewards_T: Tensor,
    old_logprobs_T: Tensor,
    log_collision_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    groups: Groups,
    sampler_logprobs_T: Tensor | None = None,
    *,
    corrected: Annotated[bool, RARE] = False,
    lone_tail: Annotated[bool, RARE] = True,
    by_position: Annotated[bool, RARE] = False,
    lone_reward: Annotated[bool, RARE] = False,
    eps: Annotated[Positive, RARE] = 1e-8,
) -> TokenAdvantage:
    """Reward-to-go minus, at each position, the group's mean of it weighted by accumulated gradient energy.

    `corrected` multiplies the energy by the squared importance weight of the sampler. `lone_tail`: where only the
    longest member is left, it has no baseline (otherwise it would be its own, and its advantage 0). Positions are
    counted in trained tokens; `by_position` counts observations too. A group of one gets 0 (with `lone_reward` its
    reward-to-go), and so does one that earned the same from every token on: its lone tail too.
    """
    to_go_T = reward_to_go(rewards_T, loss_mask_T, segments).advantages_T
    energy_T = _energy(old_logprobs_T, log_collision_T, loss_mask_T, sampler_logprobs_T, corrected)
    weight_T = _running_sum(energy_T, segments)
    lengths_B = segments.sum(loss_mask_T)
    position_T = _positions(loss_mask_T, segments, by_position)
    slot_T = segments.broadcast(groups.ids_B) * (int(segments.lengths_B.max()) + 1) + position_T
    slots = Groups.from_ids(slot_T) if slot_T.numel() else None
    if slots is None:
        return TokenAdvantage(torch.zeros_like(to_go_T), None, {})
    top_S = slots.sum(torch.where(loss_mask_T, to_go_T * weight_T, 0))
    baseline_T = slots.broadcast(top_S / (slots.sum(torch.where(loss_mask_T, weight_T, 0)) + eps))
    members_G = groups.sum(lengths_B > 0)
    if lone_tail:
        baseline_T = torch.where(
            position_T >= segments.broadcast(_tail(lengths_B, groups)), 0, baseline_T
        )
    alone_G = members_G < 2
    tokens = groups.gather(segments.ids_T)
    flat_G = tokens.all_equal(to_go_T, loss_mask_T)
    live_T = loss_mask_T & ~tokens.broadcast(alone_G | flat_G)
    metrics = {"advantage/lone_group_frac": mean_of(alone_G, torch.ones_like(alone_G))}
    rest_T = torch.where(loss_mask_T & tokens.broadcast(alone_G) & lone_reward, to_go_T, 0)
    return TokenAdvantage(torch.where(live_T, to_go_T - baseline_T, rest_T).detach(), None, metrics)


def _energy(
    old_logprobs_T: Tensor,
    log_collision_T: Tensor,
    loss_mask_T: Tensor,
    sampler_logprobs_T: Tensor | None,
    corrected: bool,
) -> Tensor:
    old_logprobs_T = torch.where(loss_mask_T, old_logprobs_T.detach(), 0)
    energy_T = (
        1 - 2 * old_logprobs_T.exp() + torch.where(loss_mask_T, log_collision_T.detach(), 0).exp()
    )
    if corrected:
        if sampler_logprobs_T is None:
            raise ValueError(
                "optimal_token_baseline: corrected=True needs the sampler's log-probs (sampler_logprobs_T)"
            )
        # As in `losses.rollout_correction`: 1 where the sampler gave none, its log clamped against overflow.
        log_T = torch.where(
            loss_mask_T & ~sampler_logprobs_T.isnan(), old_logprobs_T - sampler_logprobs_T, 0
        ).clamp(-GUARD, GUARD)
        energy_T = energy_T * torch.exp(2 * log_T)
    return torch.where(loss_mask_T, energy_T, 0)


def _running_sum(x_T: Tensor, segments: Segments) -> Tensor:
    """The running sum inside each segment, this token included; summed segment by segment, to keep its digits."""
    return segments.broadcast(segments.sum(x_T)) - reverse_scan(x_T, 1.0, segments) + x_T


def _positions(loss_mask_T: Tensor, segments: Segments, by_position: bool) -> Tensor:
    """From 0: a token's index among its sequence's trained tokens, or among all from the first of these on."""
    from_first_T = _count(loss_mask_T, segments) > 0  # without the prompt
    return (_count(from_first_T if by_position else loss_mask_T, segments) - 1).clamp(min=0)


def _count(x_T: Tensor, segments: Segments) -> Tensor:
    """How many are true in the segment up to here, this token included."""
    counted_T = x_T.to(torch.int64).cumsum(0)
    before_B = torch.cat([counted_T.new_zeros(1), counted_T])[segments.offsets[:-1]]
    return counted_T - segments.broadcast(before_B)


def _tail(lengths_B: Tensor, groups: Groups) -> Tensor:
    """For the one longest member of a group, the second largest length; for everyone else, beyond any position."""
    lowest = torch.full((groups.count,), -1, dtype=lengths_B.dtype, device=lengths_B.device)
    longest_B = groups.broadcast(lowest.scatter_reduce(0, groups.ids_B, lengths_B, "amax"))
    is_longest_B = lengths_B == longest_B
    lone_B = is_longest_B & (groups.broadcast(groups.sum(is_longest_B)) == 1)
    rest_B = torch.where(is_longest_B, 0, lengths_B)
    second_B = groups.broadcast(lowest.scatter_reduce(0, groups.ids_B, rest_B, "amax"))
    return torch.where(lone_B, second_B.clamp(min=0), torch.iinfo(torch.int64).max)
