"""From scored rollouts to what the loss reads, always in this order: filter groups, shape, credit, normalize.

A filter that looks at whole groups (their rewards, before any shaping) takes them out before anything is compared; one
that looks at single completions leaves them in their group's baseline and out of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from ascent.advantages.estimate import estimate
from ascent.algorithms.row import Row
from ascent.maths.batch import PackedBatch
from ascent.maths.metrics import Accumulator, Mean, max_of, mean_of, std_of
from ascent.records import Rollout
from ascent.rollouts.batch import Batch, place_step_rewards, select

Infer = Callable[[PackedBatch, frozenset[str]], Mapping[str, Tensor]]


def keep_groups(whole: Batch, row: Row) -> list[int]:
    """The rows that group filters keep: all of a group or none of it."""
    keep_B = torch.ones(whole["segments"].count, dtype=torch.bool)
    for each in row.filter:
        if "groups" in each.required:
            keep_B &= each(whole)
    if bool(torch.isnan(whole["rewards_B"][keep_B]).all()):  # nobody could score them: there is nothing to learn from
        return []
    kept: list[int] = keep_B.nonzero()[:, 0].tolist()
    return kept


def add_advantages(whole: Batch, row: Row) -> tuple[Batch, dict[str, Accumulator]]:
    """The batch with advantages (and value targets), and what there is to say about them."""
    assert row.advantage is not None and row.advantage_norm is not None, f"row {row.name} has no credit"
    found = estimate(
        whole, reward_shaping=row.reward_shaping, advantage=row.advantage, advantage_norm=row.advantage_norm
    )
    batch = {**whole, "advantages_T": found.advantages_T}
    if found.returns_T is not None:
        batch["returns_T"] = found.returns_T.detach()
    if "values_T" in batch:
        batch["old_values_T"] = batch.pop("values_T")  # from here on values_T is what the critic says while it learns
    segments = batch["segments"]
    # What could not be scored has no advantage, and is not trained towards one of 0 either.
    keep_B = ~torch.isnan(whole["rewards_B"])
    for each in row.filter:
        if "groups" not in each.required:
            keep_B &= each(whole)
    batch["loss_mask_T"] = batch["loss_mask_T"] & segments.broadcast(keep_B)
    return batch, dict(found.metrics)


def bootstrap_truncated(whole: Batch) -> Batch:
    """What a token budget cut off has no score of its own; the critic's value at the cut stands in for the rest.

    A critic that is asked for `scores_B` gives the value of the state after a sequence's last token.
    """
    segments, cut_B = whole["segments"], whole["truncated_B"] & ~torch.isnan(whole["rewards_B"])
    rest = {name: value for name, value in whole.items() if name != "scores_B"}
    kept_B = torch.zeros_like(whole["rewards_B"])
    if "step_rewards_T" in whole:  # steps that had ended keep theirs; the one that was cut is what the critic values
        last_T = segments.last(whole["loss_mask_T"]) & segments.broadcast(cut_B)
        rest["step_rewards_T"] = torch.where(last_T, 0, whole["step_rewards_T"])
        kept_B = segments.sum(rest["step_rewards_T"])
    return rest | {
        "bootstrap_B": torch.where(cut_B, whole["scores_B"], 0),
        "rewards_B": torch.where(cut_B, kept_B, whole["rewards_B"]),
    }


def step_rewards(whole: Batch, rollouts: Sequence[Rollout]) -> Batch:
    """A batch whose credit reads step rewards must have some; one in which nothing could be scored has none to give."""
    if not any(each.steps for each in rollouts) and any(each.scored for each in rollouts):
        raise ValueError(
            "this algorithm learns from a reward at every step, but the rewards gave one number for each answer; use "
            "a process_reward_model, the verifier of a task that scores steps (running_sum), or a function that "
            "returns StepReward records"
        )
    return place_step_rewards(rollouts, whole)


def add_model_outputs(whole: Batch, infer: Infer, want: frozenset[str], budget: int) -> dict[str, Tensor]:
    """What a model says about every sequence, a few at a time, in the whole batch's order."""
    pieces: list[list[int]] = [[]]
    used = 0
    for row, length in enumerate(whole["segments"].lengths_B.tolist()):
        if pieces[-1] and used + length > budget:
            pieces.append([])
            used = 0
        pieces[-1].append(row)
        used += length
    read = ("tokens_T", "positions_T", "loss_mask_T", "segments", "groups", "routed_experts_TLC")
    plain = {name: whole[name] for name in read if name in whole}
    found = [infer(cast(PackedBatch, select(plain, rows)), want) for rows in pieces]
    return {name: torch.cat([each[name].cpu() for each in found]) for name in want}


def rollout_metrics(whole: Batch, parts: Mapping[str, Tensor]) -> dict[str, Accumulator]:
    """True means over the rollouts of a step, before any filter; `parts` as `parts_of` has them."""
    segments, groups = whole["segments"], whole["groups"]
    everyone_B = torch.ones(segments.count, dtype=torch.bool)
    scored_B = ~torch.isnan(whole["rewards_B"])
    known_B = ~torch.isnan(whole["correct_B"])
    length_B = segments.sum(whole["loss_mask_T"]).double()
    # One answer cannot differ from itself: groups of one say nothing about how much there is to compare.
    several_G = groups.sum(everyone_B) > 1
    flat_G = groups.spans_nothing(whole["rewards_B"], scored_B) & several_G
    found: dict[str, Accumulator] = {
        "reward/mean": mean_of(whole["rewards_B"], scored_B),
        "reward/std": std_of(whole["rewards_B"], scored_B),
        "reward/correct": mean_of(whole["correct_B"], known_B),
        "reward/failure_frac": mean_of(~scored_B, everyone_B),
        "completion/length_mean": mean_of(length_B, everyone_B),
        "completion/length_max": max_of(length_B, everyone_B),
        "completion/truncated_frac": mean_of(whole["truncated_B"], everyone_B),
    }
    if bool(several_G.any()):
        found["reward/zero_std_frac"] = Mean(flat_G.sum(), several_G.sum())
    return found | {f"reward/{name}": mean_of(part_B, ~torch.isnan(part_B)) for name, part_B in parts.items()}
