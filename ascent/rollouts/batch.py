"""Rollouts as packed tensors (docs/decisions/0003), whole and in pieces.

A rollout is one sequence: what the policy read and what it sampled, turn after turn; sampled tokens alone are trained.

Axes: T flat tokens, B sequences, K reward parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ascent.maths.groups import Groups
from ascent.maths.segments import Segments
from ascent.records import Rollout

Batch = dict[str, Any]
CORRECT = "correct"  # the reward part that says right or wrong, by the last word of its name


def packed(rollouts: Sequence[Rollout]) -> Batch:
    """Everything that the rollouts themselves say. Unscored is NaN."""
    lengths = [sum(len(turn.observed) + len(turn.completion.tokens) for turn in each.turns) for each in rollouts]
    segments = Segments.from_lengths(lengths)
    tokens = [token for each in rollouts for turn in each.turns for token in (*turn.observed, *turn.completion.tokens)]
    batch: Batch = {
        "tokens_T": torch.tensor(tokens),
        "trained_T": torch.tensor(_per_token(rollouts, lambda turn: [True] * len(turn.completion.tokens), False)),
        "rollout_T": torch.tensor(_per_token(rollouts, lambda turn: turn.completion.logprobs, 0.0)),
        "versions_T": torch.tensor(_per_token(rollouts, lambda turn: turn.completion.versions, 0)),
        "positions_T": torch.arange(segments.total) - segments.spread(segments.offsets[:-1]),
        "segments": segments,
        "groups": Groups.from_ids(_numbered([each.prompt.id for each in rollouts])),
        "rewards_B": torch.tensor([math.nan if each.reward is None else each.reward for each in rollouts]),
        "correct_B": torch.tensor([correctness(each) for each in rollouts]),
        "truncated_B": torch.tensor([each.truncated for each in rollouts]),
    }
    batch["group_ids_B"] = batch["groups"].ids_B  # groups are numbered anew in every piece; these numbers hold for all
    names = sorted({name for each in rollouts for name in each.parts})
    if names:
        rows = [[math.nan if each.parts.get(name) is None else each.parts[name] for name in names] for each in rollouts]
        batch["parts_BK"] = torch.tensor(rows, dtype=torch.float32)
    if any(each.steps for each in rollouts):
        batch |= _steps(rollouts, batch["trained_T"], segments)
    return batch


def pick(whole: Mapping[str, Any], rows: Sequence[int]) -> Batch:
    """Some sequences of a batch, as a batch of their own; names say by their last letters what is cut how."""
    segments: Segments = whole["segments"]
    rows_B = torch.tensor(list(rows))
    starts = segments.offsets.tolist()
    places_T = torch.cat([torch.arange(starts[row], starts[row + 1]) for row in rows])
    found: Batch = {}
    for name, value in whole.items():
        if name == "segments":
            found[name] = Segments.from_lengths(segments.lengths_B[rows_B])
        elif name == "groups":
            found[name] = Groups.from_ids(value.ids_B[rows_B])
        elif name.endswith(("_T", "_TV", "_TC")):
            found[name] = value[places_T]
        elif name.endswith(("_B", "_BK")):
            found[name] = value[rows_B]
        else:
            raise ValueError(f"{name} cannot be cut by sequences; name it by its axes")
    return found


def cut(whole: Mapping[str, Any], units: Sequence[Sequence[int]], budget: int) -> list[Batch]:
    """Micro-batches of at most `budget` tokens, filled longest first, in as few as that rule can fill.

    A unit are the rows that must stay together: one, or the two of a pair. Results do not depend on the cut; only time
    and memory do.
    """
    lengths = whole["segments"].lengths_B.tolist()
    sized = [(sum(lengths[row] for row in unit), unit) for unit in units]
    longest, largest = max(sized, key=lambda each: each[0])
    if longest > budget:
        raise ValueError(
            f"{'a rollout has' if len(largest) == 1 else f'{len(largest)} rollouts that stay together have'} {longest} "
            f"tokens, more than update.tokens_per_microbatch={budget}; raise it, or lower rollouts.max_new_tokens"
        )
    bins: list[list[int]] = []
    room: list[int] = []
    for size, unit in sorted(sized, key=lambda each: -each[0]):
        place = next((n for n, left in enumerate(room) if size <= left), None)
        if place is None:
            bins.append([*unit])
            room.append(budget - size)
        else:
            bins[place] += unit
            room[place] -= size
    return [pick(whole, sorted(each)) for each in bins]


def _per_token(rollouts: Sequence[Rollout], sampled: Any, observed: Any) -> list[Any]:
    found: list[Any] = []
    for each in rollouts:
        for turn in each.turns:
            found += [observed] * len(turn.observed)
            found += sampled(turn)
    return found


def _numbered(names: Sequence[str]) -> list[int]:
    """Equal names get equal numbers, by first appearance."""
    known: dict[str, int] = {}
    return [known.setdefault(name, len(known)) for name in names]


def correctness(rollout: Rollout) -> float:
    """Right or wrong as the rewards see it, before any shaping: the part of that name, or the whole reward."""
    parts = [value for name, value in rollout.parts.items() if name.rpartition("/")[2] == CORRECT]
    value = parts[0] if parts else rollout.reward
    return math.nan if value is None else float(value)


def _steps(rollouts: Sequence[Rollout], trained_T: Tensor, segments: Segments) -> Batch:
    """Step rewards where they were given: `StepReward.token` counts sampled tokens, the batch counts all of them."""
    rewards_T = torch.zeros(segments.total)
    ends_T = torch.zeros(segments.total, dtype=torch.bool)
    starts = segments.offsets.tolist()
    for row, each in enumerate(rollouts):
        sampled = trained_T[starts[row] : starts[row + 1]].nonzero()[:, 0] + starts[row]
        for step in each.steps:
            rewards_T[sampled[step.token]] += step.value
            ends_T[sampled[step.token]] = True
    return {"step_rewards_T": rewards_T, "step_ends_T": ends_T}
