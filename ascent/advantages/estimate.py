"""The advantages of a row, in one fixed order: shape rewards, place them on tokens, advantage, normalize, detach.

`available` holds the fields of the rollout batch by name (docs/decisions/0002); every cell picks its inputs. Axes: T
flat tokens, B sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ascent.advantages.advantage import SequenceAdvantage
from ascent.advantages.group_baselines import scored
from ascent.advantages.reward_shaping import on_last_token
from ascent.cells import Cell
from ascent.maths.metrics import Accumulator, max_of, mean_of, std_of


class Estimate(NamedTuple):
    """Advantages (0 outside trained tokens), value targets or None, shaped rewards, metrics; all without gradient."""

    advantages_T: Tensor
    returns_T: Tensor | None
    rewards_B: Tensor
    metrics: Mapping[str, Accumulator]


def estimate(
    available: Mapping[str, Any],
    *,
    reward_shaping: Sequence[Cell],
    advantage: Cell,
    advantage_norm: Cell,
) -> Estimate:
    """Advantages of a whole rollout batch. Needs at least rewards_B, loss_mask_T and segments in `available`."""
    known = dict(available)
    segments, loss_mask_T, raw_B = known["segments"], known["loss_mask_T"], known["rewards_B"]
    scored_B = scored(raw_B)
    known.setdefault("lengths_B", segments.sum(loss_mask_T))
    known["scored_B"] = scored_B
    known["rewards_B"] = shaped_rewards(known, reward_shaping)
    extra_T = raw_B.new_zeros(segments.total)
    for rule in reward_shaping:
        if not {"rewards_B", "rewards_T"} & set(rule.inputs):  # rules on token rewards come later
            extra_T = extra_T + rule(known)
    known["rewards_T"] = _place(known, raw_B) + extra_T
    known["rewards_B"] = known["rewards_B"] + segments.sum(extra_T)
    # Unscored sequences get no advantage: estimators do not see their tokens.
    valid_T = loss_mask_T & segments.broadcast(scored_B)
    known["loss_mask_T"] = valid_T
    for rule in [rule for rule in reward_shaping if "rewards_T" in rule.inputs]:
        known["rewards_T"] = rule(known)
        known["rewards_B"] = torch.where(scored_B, segments.sum(known["rewards_T"]), float("nan"))

    result = advantage(known)
    if isinstance(result, SequenceAdvantage):
        known["advantages_B"] = result.advantages_B
        known["advantages_T"] = torch.where(valid_T, segments.broadcast(result.advantages_B), 0)
        returns_T = None
    else:
        known["advantages_T"], returns_T = result.advantages_T, result.returns_T
    scaled = advantage_norm(known)
    if "advantages_B" in advantage_norm.inputs:  # then it returns one per sequence
        scaled = segments.broadcast(scaled)
    advantages_T = torch.where(valid_T, scaled, 0).detach()
    return Estimate(
        advantages_T,
        returns_T,
        known["rewards_B"].detach(),
        _metrics(result, raw_B, advantages_T, valid_T),
    )


def shaped_rewards(available: Mapping[str, Any], rules: Sequence[Cell]) -> Tensor:
    """`rewards_B` after the rules on a sequence's score, in order. An unscored sequence stays unscored, even under a
    rule that replaces the score."""
    known = dict(available)
    known.setdefault("lengths_B", known["segments"].sum(known["loss_mask_T"]))
    scored_B = scored(known["rewards_B"])
    for rule in rules:
        if "rewards_B" in rule.inputs:
            known["rewards_B"] = torch.where(scored_B, rule(known), float("nan"))
    rewards_B: Tensor = known["rewards_B"]
    return rewards_B


def _place(known: Mapping[str, Any], raw_B: Tensor) -> Tensor:
    """Rewards by token: at the end of each step where steps were rewarded, else at the sequence's last trained token.

    What shaping changes of the sum of step rewards is put on the last token: steps 1 and .5 under an EOS rule of -1 are
    1, then .5 - 2.5.
    """
    segments, loss_mask_T, shaped_B = known["segments"], known["loss_mask_T"], known["rewards_B"]
    whole_T = on_last_token(torch.where(known["scored_B"], shaped_B, 0), loss_mask_T, segments)
    if "step_rewards_T" not in known:
        return whole_T
    changed_T = on_last_token(
        torch.where(known["scored_B"], shaped_B - raw_B, 0), loss_mask_T, segments
    )
    stepwise_B = segments.sum(known["step_ends_T"]) > 0
    return torch.where(segments.broadcast(stepwise_B), known["step_rewards_T"] + changed_T, whole_T)


def _metrics(
    result: Any, raw_B: Tensor, advantages_T: Tensor, valid_T: Tensor
) -> dict[str, Accumulator]:
    scored_B = scored(raw_B)
    return {
        **result.metrics,
        "reward/mean": mean_of(raw_B, scored_B),
        "reward/std": std_of(raw_B, scored_B),
        "advantage/mean": mean_of(advantages_T, valid_T),
        "advantage/std": std_of(advantages_T, valid_T),
        "advantage/abs_max": max_of(advantages_T.abs(), valid_T),
    }
