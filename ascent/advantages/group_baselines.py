"""Advantages without a critic: completions of the same prompt are compared with each other.

Axes: B sequences, G groups, K reward components, T flat tokens. A reward of NaN means "could not be scored": it enters
no statistic and gets advantage 0. A group with fewer than two scored members gets 0 and is counted; so is a group whose
rewards are all equal, and there the 0 is exact (docs/decisions/0007). An infinite reward is a bug: refused.
`lone_reward`, for custom rows, gives a sequence without a scored sibling its whole reward, as verl does.

Worked example, one group, rewards [1, .8, .4, .2]:
  group_mean_baseline [.4, .2, -.2, -.4]                 (divided by the sample std .365: +-1.095, +-.548)
  leave_one_out    [.533, .267, -.267, -.533]         (each against the mean of the three others)
  length_weighted  lengths [2, 4, 6, 8]: baseline .46 -> [.54, .34, -.06, -.26]
  best_of_group    [.2, 0, 0, 0]                      (the best against the second)
  success_scaled   [.4, .2, -.2, -.4]                 (times sequences / sequences that earned anything)
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from ascent.advantages.advantage import SequenceAdvantage, TokenAdvantage
from ascent.advantages.returns import reward_to_go
from ascent.maths.groups import Groups
from ascent.maths.metrics import Mean, mean_of
from ascent.maths.segments import Segments
from ascent.parameter_ranges import RARE, NonNegative, Positive, checked

LoneReward = Annotated[bool, RARE]


def raw(rewards_B: Tensor) -> SequenceAdvantage:
    """The reward itself, no baseline."""
    scored_B = scored(rewards_B)
    return SequenceAdvantage(torch.where(scored_B, rewards_B, 0).detach(), _failure_frac(scored_B))


@checked
def group_mean_baseline(
    rewards_B: Tensor, groups: Groups, *, lone_reward: LoneReward = False
) -> SequenceAdvantage:
    """Reward minus the mean of its group (GRPO, Dr. GRPO)."""
    return _minus_baseline(
        rewards_B, groups, groups.broadcast(groups.mean(rewards_B, scored(rewards_B))), lone_reward
    )


@checked
def leave_one_out(
    rewards_B: Tensor, groups: Groups, *, lone_reward: LoneReward = False
) -> SequenceAdvantage:
    """Reward minus the mean of the OTHER members of its group (RLOO); G/(G-1) times `group_mean_baseline`."""
    inner = group_mean_baseline(rewards_B, groups, lone_reward=lone_reward)
    members_B = groups.broadcast(groups.sum(scored(rewards_B))).to(rewards_B.dtype)
    factor_B = members_B / (members_B - 1).clamp(min=1)
    return SequenceAdvantage(inner.advantages_B * factor_B, inner.metrics)


@checked
def length_weighted(
    rewards_B: Tensor, lengths_B: Tensor, groups: Groups, *, lone_reward: LoneReward = False
) -> SequenceAdvantage:
    """Reward minus the group's mean weighted by length, the variance-optimal baseline of OPO (arXiv 2505.23585)."""
    scored_B = scored(rewards_B)
    weights_B = torch.where(scored_B, lengths_B.to(rewards_B.dtype), 0)
    weighted_G = groups.sum(weights_B * torch.where(scored_B, rewards_B, 0))
    weight_G = groups.sum(weights_B)
    baseline_G = torch.where(
        weight_G > 0, weighted_G / weight_G.clamp(min=1), groups.mean(rewards_B, scored_B)
    )
    return _minus_baseline(rewards_B, groups, groups.broadcast(baseline_G), lone_reward)


def best_of_group(rewards_B: Tensor, groups: Groups) -> SequenceAdvantage:
    """Only the best completion of a prompt is trained, by how much it beats the second best: for pass@k.

    verl's grpo_passk, after arXiv 2503.19595. A tie at the top is no lead: 0.
    """
    scored_B = scored(rewards_B)
    known_B = torch.where(scored_B, rewards_B, float("-inf"))
    first_G = known_B.new_full((groups.count,), float("-inf")).scatter_reduce(
        0, groups.ids_B, known_B, "amax"
    )
    best_B = scored_B & (known_B == groups.broadcast(first_G))
    tied_G = groups.sum(best_B) > 1
    rest_B = torch.where(best_B, float("-inf"), known_B)
    second_G = known_B.new_full((groups.count,), float("-inf")).scatter_reduce(
        0, groups.ids_B, rest_B, "amax"
    )
    baseline_G = torch.where(tied_G | torch.isinf(second_G), first_G, second_G)
    inner = _minus_baseline(
        rewards_B, groups, groups.broadcast(torch.where(torch.isinf(baseline_G), 0, baseline_G))
    )
    return SequenceAdvantage(torch.where(best_B, inner.advantages_B, 0), inner.metrics)


@checked
def success_scaled(
    rewards_B: Tensor,
    groups: Groups,
    *,
    scale: Annotated[Positive, RARE] = 1.0,
    lone_reward: LoneReward = False,
) -> SequenceAdvantage:
    """Reward minus group mean, times (sequences / sequences with a reward other than 0) / scale (GPG).

    arXiv 2504.02546. One factor for the whole rollout batch: it undoes the shrinking of a step in which most groups
    earn nothing.
    """
    inner, scored_B = (
        group_mean_baseline(rewards_B, groups, lone_reward=lone_reward),
        scored(rewards_B),
    )
    earned = (scored_B & (rewards_B != 0)).sum().clamp(min=1)
    factor = scored_B.sum().to(rewards_B.dtype) / earned / scale
    return SequenceAdvantage(inner.advantages_B * factor, inner.metrics)


def against_optimum(rewards_B: Tensor, optimal_values_B: Tensor) -> SequenceAdvantage:
    """Reward minus the prompt's optimal value under KL to the reference (A*-PO, arXiv 2505.20686)."""
    scored_B = scored(rewards_B)
    gap_B = torch.where(scored_B, rewards_B, 0) - optimal_values_B
    return SequenceAdvantage(torch.where(scored_B, gap_B, 0).detach(), _failure_frac(scored_B))


@checked
def optimal_values(rewards_B: Tensor, groups: Groups, *, beta: Positive = 0.5) -> Tensor:
    """beta log mean e^(R / beta) over a prompt's samples from the reference: A*-PO's first stage, one per sequence.

    Rewards (1, 0, 0, 0), beta .5: .477229. A prompt whose samples were all unscored gets 0.
    """
    scored_B = scored(rewards_B)
    scaled_B = torch.where(scored_B, rewards_B / beta, float("-inf"))
    largest_G = scaled_B.new_full((groups.count,), float("-inf")).scatter_reduce(
        0, groups.ids_B, scaled_B, "amax"
    )
    largest_G = torch.where(torch.isinf(largest_G), 0, largest_G)
    total_G = groups.sum(torch.where(scored_B, (scaled_B - groups.broadcast(largest_G)).exp(), 0))
    count_G = groups.sum(scored_B).to(total_G.dtype)
    value_G = beta * (largest_G + torch.log(total_G / count_G.clamp(min=1)))
    return groups.broadcast(torch.where(count_G > 0, value_G, 0))


@checked
def against_opponent(
    win_prob_B: Tensor,
    old_logprobs_T: Tensor,
    ref_logprobs_T: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    *,
    beta: NonNegative = 0.1,
) -> TokenAdvantage:
    """(win probability - 1/2) - beta (log pi - log ref) of the token itself (Nash-MD, arXiv 2312.00886).

    `win_prob_B` is the probability that the completion beats one from a mixture of policy and reference. The KL of a
    token counts for that token alone, without reward-to-go. Win probability .8, beta .1, log-ratio .5: A = .25.
    """
    scored_B = scored(win_prob_B)
    beyond_B = scored_B & ((win_prob_B < 0) | (win_prob_B > 1))
    if bool(beyond_B.any()):
        raise ValueError(
            f"against_opponent: {float(win_prob_B[beyond_B][0]):g} is no probability of beating the opponent; give "
            "numbers between 0 and 1, such as the sigmoid of the difference of two scores"
        )
    lead_T = segments.broadcast(torch.where(scored_B, win_prob_B - 0.5, 0))
    penalty_T = beta * (
        torch.where(loss_mask_T, old_logprobs_T, 0) - torch.where(loss_mask_T, ref_logprobs_T, 0)
    )
    return TokenAdvantage(
        torch.where(loss_mask_T, lead_T - penalty_T, 0).detach(), None, _failure_frac(scored_B)
    )


def greedy_baseline(
    rewards_T: Tensor, greedy_rewards_B: Tensor, loss_mask_T: Tensor, segments: Segments
) -> TokenAdvantage:
    """Reward-to-go minus the reward of one greedy completion of the same prompt (ReMax, arXiv 2310.10505)."""
    to_go_T = reward_to_go(rewards_T, loss_mask_T, segments).advantages_T
    known_B = scored(greedy_rewards_B)
    baseline_T = segments.broadcast(greedy_rewards_B.to(to_go_T))
    compared_T = loss_mask_T & segments.broadcast(known_B)
    metrics = {"advantage/no_baseline_frac": mean_of(~known_B, torch.ones_like(known_B))}
    return TokenAdvantage(torch.where(compared_T, to_go_T - baseline_T, 0), None, metrics)


@checked
def steps_to_go(
    step_rewards_T: Tensor,
    step_ends_T: Tensor,
    loss_mask_T: Tensor,
    groups: Groups,
    segments: Segments,
    *,
    eps: Annotated[Positive, RARE] = 1e-4,
) -> TokenAdvantage:
    """Process supervision: z-score all step rewards of the group together, then sum those at or after each token.

    GRPO with process rewards (DeepSeekMath, arXiv 2402.03300, 4.1.3). Tokens after the last step's end get 0. A step
    reward of NaN could not be scored: it enters no statistic and adds nothing.
    """
    segments.check(step_rewards_T, step_ends_T, loss_mask_T)
    scored_T = step_ends_T & scored(torch.where(step_ends_T, step_rewards_T, 0))
    by_step = groups.gather(segments.ids_T)
    centered_T = step_rewards_T - by_step.broadcast(by_step.mean(step_rewards_T, scored_T))
    flat_G = by_step.all_equal(step_rewards_T, scored_T) | (by_step.sum(scored_T) < 2)
    std_T = by_step.broadcast(by_step.std(step_rewards_T, scored_T))
    normal_T = torch.where(scored_T & ~by_step.broadcast(flat_G), centered_T / (std_T + eps), 0)
    to_go_T = reward_to_go(normal_T.detach(), torch.ones_like(loss_mask_T), segments).advantages_T
    return TokenAdvantage(
        torch.where(loss_mask_T, to_go_T, 0), None, {"reward/zero_std_frac": _fraction(flat_G)}
    )


@checked
def decoupled_parts(
    reward_components_BK: Tensor,
    groups: Groups,
    component_weights_BK: Tensor | None = None,
    *,
    part_weights: str = "",
    eps: Annotated[Positive, RARE] = 1e-4,
    lone_reward: LoneReward = False,
) -> SequenceAdvantage:
    """GDPO's first step: z-score every reward component within its group on its own, then add them (weighted).

    A component that does not vary in a group contributes 0 there; one that is NaN is left out of that sequence's sum.
    Weights are those of the rewards (`component_weights_BK`, the same in every row; without it, all 1), unless
    `part_weights` lists others, "1,0.5". The second step, the batch z-score over sequences, is the normalizer
    `batch_zscore`.
    """
    weights_K = _part_weights(part_weights, reward_components_BK, component_weights_BK)
    total_B = torch.zeros_like(reward_components_BK[:, 0])
    known_B = torch.zeros_like(total_B, dtype=torch.bool)
    for part_B, weight in zip(reward_components_BK.unbind(1), weights_K, strict=True):
        inner = group_mean_baseline(part_B, groups, lone_reward=lone_reward)
        total_B = total_B + weight * inner.advantages_B / (
            groups.broadcast(deviation(part_B, groups)) + eps
        )
        known_B = known_B | scored(part_B)
    return SequenceAdvantage(total_B.detach(), _failure_frac(known_B))


def scored(rewards_B: Tensor) -> Tensor:
    """Which rewards are known (not NaN); refuses an infinite one."""
    infinite_B = torch.isinf(rewards_B)
    if bool(infinite_B.any()):
        where = int(infinite_B.nonzero()[0, 0])
        raise ValueError(
            f"reward {float(rewards_B[where])} at index {where}: a reward must be finite, or NaN for 'could not be "
            "scored'; fix the reward function"
        )
    return ~torch.isnan(rewards_B)


def deviation(rewards_B: Tensor, groups: Groups) -> Tensor:
    """The std of each group's rewards; 1 where fewer than two were scored."""
    scored_B = scored(rewards_B)
    return torch.where(groups.sum(scored_B) < 2, 1, groups.std(rewards_B, scored_B))


def _minus_baseline(
    rewards_B: Tensor, groups: Groups, baseline_B: Tensor, lone_reward: bool = False
) -> SequenceAdvantage:
    """Reward minus baseline, with the exact zeros of the module docstring."""
    if rewards_B.shape != groups.ids_B.shape:
        raise ValueError(
            f"{rewards_B.numel()} rewards for {groups.ids_B.numel()} sequences; mismatched lengths"
        )
    scored_B = scored(rewards_B)
    alone_G = groups.sum(scored_B) < 2
    flat_G = groups.all_equal(rewards_B, scored_B)
    live_B = scored_B & ~groups.broadcast(alone_G | flat_G)
    metrics: dict[str, Mean] = {
        **_failure_frac(scored_B),
        "advantage/lone_group_frac": _fraction(alone_G),
        "reward/zero_std_frac": _fraction(flat_G & ~alone_G),
    }
    rest_B = torch.where(scored_B & groups.broadcast(alone_G) & lone_reward, rewards_B, 0)
    return SequenceAdvantage(torch.where(live_B, rewards_B - baseline_B, rest_B).detach(), metrics)


def _fraction(flag_G: Tensor) -> Mean:
    return mean_of(flag_G, torch.ones_like(flag_G))


def _failure_frac(scored_B: Tensor) -> dict[str, Mean]:
    return {"reward/failure_frac": mean_of(~scored_B, torch.ones_like(scored_B))}


def _part_weights(text: str, reward_components_BK: Tensor, given_BK: Tensor | None) -> list[float]:
    if reward_components_BK.ndim != 2:
        raise ValueError(
            f"reward parts have shape {tuple(reward_components_BK.shape)}; they must be (sequences, parts)"
        )
    if given_BK is not None and given_BK.numel() and not text:
        return [float(weight) for weight in given_BK[0]]
    weights = (
        [float(word) for word in text.split(",")] if text else [1.0] * reward_components_BK.shape[1]
    )
    if len(weights) != reward_components_BK.shape[1]:
        raise ValueError(
            f"part_weights={text!r} for {reward_components_BK.shape[1]} reward parts; give one number per part"
        )
    return weights
