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
CORRECT = ("correct", "exact")  # reward parts that say right or wrong, by the last word of their name


def pack_rollouts(rollouts: Sequence[Rollout]) -> Batch:
    """Everything that the rollouts themselves say. Unscored is NaN."""
    lengths = [sum(len(turn.observed) + len(turn.completion.tokens) for turn in each.turns) for each in rollouts]
    segments = Segments.from_lengths(lengths)
    tokens = [token for each in rollouts for turn in each.turns for token in (*turn.observed, *turn.completion.tokens)]
    return {
        "tokens_T": torch.tensor(tokens),
        "loss_mask_T": torch.tensor(_per_token(rollouts, lambda turn: [True] * len(turn.completion.tokens), False)),
        "sampler_logprobs_T": torch.tensor(_per_token(rollouts, lambda turn: turn.completion.logprobs, 0.0)),
        "versions_T": torch.tensor(_per_token(rollouts, lambda turn: turn.completion.versions, 0)),
        "positions_T": torch.arange(segments.total) - segments.broadcast(segments.offsets[:-1]),
        "segments": segments,
        "groups": Groups.from_ids(_numbered([each.prompt.id for each in rollouts])),
        "rewards_B": torch.tensor([_number(each.reward) for each in rollouts]),
        "correct_B": torch.tensor([correctness(each) for each in rollouts]),
        "truncated_B": torch.tensor([each.truncated for each in rollouts]),
        **routed_experts(rollouts),
    }


def routed_experts(rollouts: Sequence[Rollout]) -> Batch:
    """The experts that each token took when it was first run, where they were recorded; (T, layers, choices).

    A turn reads all before it once more: what it says about tokens that have theirs already is not used. Tokens that
    were never run, as the last of a rollout, have the largest number of the type.
    """
    turns = [[turn.completion.routed_experts for turn in each.turns] for each in rollouts]
    known = next((found for each in turns for found in each if found is not None), None)
    if known is None:
        return {}
    dtype = torch.uint8 if known.width == 1 else torch.int16
    whole = []
    for rollout, founds in zip(rollouts, turns, strict=True):
        length = sum(len(turn.observed) + len(turn.completion.tokens) for turn in rollout.turns)
        own_TLC = torch.full((length, known.layers, known.choices), torch.iinfo(dtype).max, dtype=dtype)
        done = 0
        for found in founds:
            if found is not None:
                numbers = torch.frombuffer(bytearray(found.prompt + found.sampled), dtype=dtype)
                own_TLC[done : found.tokens] = numbers.view(-1, known.layers, known.choices)[done:]
                done = found.tokens
        whole.append(own_TLC)
    return {"routed_experts_TLC": torch.cat(whole)}


def reward_components(rollouts: Sequence[Rollout]) -> dict[str, Tensor]:
    """Every reward part that some rollout has a number for, one entry a rollout; NaN where it could not be scored."""
    names = sorted({name for each in rollouts for name, value in each.parts.items() if value is not None})
    return {name: torch.tensor([_number(each.parts.get(name)) for each in rollouts]) for name in names}


def weighted_components(rollouts: Sequence[Rollout], names: Sequence[str]) -> Batch:
    """These parts side by side, and what each counts for, as the rewards have it."""
    parts = [[_number(each.parts.get(name)) for name in names] for each in rollouts]
    weights = [max((each.weights.get(name, 0.0) for each in rollouts), key=abs, default=0.0) for name in names]
    shape = (len(rollouts), len(names))
    return {
        "reward_components_BK": torch.tensor(parts, dtype=torch.float32).view(shape),
        "component_weights_BK": torch.tensor(weights, dtype=torch.float32).expand(shape).clone(),
    }


def select(whole: Mapping[str, Any], rows: Sequence[int]) -> Batch:
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
            found[name] = value.select(rows_B)
        elif name.endswith(("_T", "_TV", "_TC", "_TLC")):
            found[name] = value[places_T]
        elif name.endswith(("_B", "_BK")):
            found[name] = value[rows_B]
        else:
            raise ValueError(f"{name} cannot be cut by sequences; name it by its axes")
    return found


def concat(first: Batch, second: Batch) -> Batch:
    """Two draws of a step as one batch. A prompt that both drew is two groups: its answers are compared per draw."""
    lengths = torch.cat([first["segments"].lengths_B, second["segments"].lengths_B])
    groups = Groups.concat([first["groups"], second["groups"].beyond(first["groups"])])
    both: Batch = {"segments": Segments.from_lengths(lengths), "groups": groups}
    return both | {name: torch.cat([first[name], second[name]]) for name in first if name not in both}


def split_microbatches(whole: Mapping[str, Any], units: Sequence[Sequence[int]], budget: int) -> list[Batch]:
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
    return [select(whole, sorted(each)) for each in bins]


def _per_token(rollouts: Sequence[Rollout], sampled: Any, observed: Any) -> list[Any]:
    found: list[Any] = []
    for each in rollouts:
        for turn in each.turns:
            found += [observed] * len(turn.observed)
            found += sampled(turn)
    return found


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _numbered(names: Sequence[str]) -> list[int]:
    """Equal names get equal numbers, by first appearance."""
    known: dict[str, int] = {}
    return [known.setdefault(name, len(known)) for name in names]


def correctness(rollout: Rollout) -> float:
    """Right or wrong as the rewards see it, before any shaping: a part of that name, or the whole reward."""
    parts = [value for word in CORRECT for name, value in rollout.parts.items() if name.rpartition("/")[2] == word]
    return float(_number(parts[0] if parts else rollout.reward))


def place_step_rewards(rollouts: Sequence[Rollout], whole: Batch) -> Batch:
    """Step rewards where they were given: `StepReward.token` counts sampled tokens, the batch counts all of them."""
    loss_mask_T, segments = whole["loss_mask_T"], whole["segments"]
    rewards_T = torch.zeros(segments.total)
    ends_T = torch.zeros(segments.total, dtype=torch.bool)
    starts = segments.offsets.tolist()
    for row, each in enumerate(rollouts):
        if not each.steps:
            continue
        sampled = loss_mask_T[starts[row] : starts[row + 1]].nonzero()[:, 0] + starts[row]
        for step in each.steps:
            rewards_T[sampled[step.token]] += step.value
            ends_T[sampled[step.token]] = True
    return {"step_rewards_T": rewards_T, "step_ends_T": ends_T}
