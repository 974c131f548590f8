"""Rollouts as a packed batch.

A rollout is one sequence: what the policy read and what it sampled, turn after turn. Only sampled tokens are trained.
Axes: T flat tokens, B sequences, K reward components, L layers, C chosen experts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ascent.maths import batch as batches
from ascent.maths.batch import PackedBatch
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments
from ascent.maths.to_bytes import to_bytes
from ascent.parallel.ranks import Ranks
from ascent.records import Rollout

CORRECT = (
    "correct",
    "exact",
)  # reward components that say right or wrong, by the last part of their name


def pack_over_ranks(rollouts: Sequence[Rollout], ranks: Ranks) -> PackedBatch:
    """`pack_rollouts`, each rank packing a part: it takes longer for a token than sending it."""
    if ranks.count == 1 or len(rollouts) < ranks.count:
        return pack_rollouts(rollouts)
    packed = batches.concat(
        ranks.gather(pack_rollouts(ranks.part(rollouts)), "the packed rollouts")
    )
    return {**packed, "groups": _groups(rollouts)}  # a rank numbers the groups of its part


def pack_rollouts(rollouts: Sequence[Rollout]) -> PackedBatch:
    """Everything that the rollouts hold. Unscored is NaN."""
    segments = Segments.from_lengths([_length(each) for each in rollouts])
    tokens, versions, logprobs, sampled = bytearray(), bytearray(), bytearray(), bytearray()
    for turn in (turn for each in rollouts for turn in each.turns):
        before, completion = len(turn.observed), turn.completion
        tokens += to_bytes("q", turn.observed) + to_bytes("q", completion.tokens)
        versions += bytes(8 * before) + to_bytes("q", completion.versions)
        logprobs += bytes(4 * before) + to_bytes("f", completion.logprobs)
        sampled += bytes(before) + b"\1" * len(completion.tokens)
    batch: PackedBatch = {
        "tokens_T": torch.frombuffer(tokens, dtype=torch.int64),
        "loss_mask_T": torch.frombuffer(sampled, dtype=torch.bool),
        "sampler_logprobs_T": torch.frombuffer(logprobs, dtype=torch.float32),
        "versions_T": torch.frombuffer(versions, dtype=torch.int64),
        "positions_T": torch.arange(segments.total) - segments.broadcast(segments.offsets[:-1]),
        "segments": segments,
        "groups": _groups(rollouts),
        "rewards_B": torch.tensor([_number(each.reward) for each in rollouts]),
        "correct_B": torch.tensor([correctness(each) for each in rollouts]),
        "truncated_B": torch.tensor([each.truncated for each in rollouts]),
    }
    experts_TLC = routed_experts(rollouts)
    return batch if experts_TLC is None else {**batch, "routed_experts_TLC": experts_TLC}


def _groups(rollouts: Sequence[Rollout]) -> Groups:
    """Rollouts of one prompt are a group."""
    names = [each.prompt.id for each in rollouts]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return Groups.from_ids([numbers[name] for name in names])


def routed_experts(rollouts: Sequence[Rollout]) -> Tensor | None:
    """The experts that each token was routed to when it was first run; None where nothing was recorded.

    A turn runs the tokens before it again; what it records about those is not used. Tokens that were never run, such
    as the last of a rollout, have the largest number of the type.
    """
    records = [[turn.completion.routed_experts for turn in each.turns] for each in rollouts]
    known = next((record for each in records for record in each if record is not None), None)
    if known is None:
        return None
    dtype = torch.uint8 if known.width == 1 else torch.int16
    pieces = []
    for rollout, own in zip(rollouts, records, strict=True):
        experts_TLC = torch.full(
            (_length(rollout), known.layers, known.choices), torch.iinfo(dtype).max, dtype=dtype
        )
        done = 0
        for record in own:
            if record is not None:
                numbers = torch.frombuffer(bytearray(record.prompt + record.sampled), dtype=dtype)
                experts_TLC[done : record.tokens] = numbers.view(-1, known.layers, known.choices)[
                    done:
                ]
                done = record.tokens
        pieces.append(experts_TLC)
    return torch.cat(pieces)


def reward_components(rollouts: Sequence[Rollout]) -> dict[str, Tensor]:
    """Every reward component that some rollout has, one entry per rollout; NaN where it could not be scored."""
    names = sorted(
        {name for each in rollouts for name, value in each.parts.items() if value is not None}
    )
    return {
        name: torch.tensor([_number(each.parts.get(name)) for each in rollouts]) for name in names
    }


def weighted_components(rollouts: Sequence[Rollout], names: Sequence[str]) -> PackedBatch:
    """These components as columns, and the weight of each."""
    parts = [[_number(each.parts.get(name)) for name in names] for each in rollouts]
    weights = [
        max((each.weights.get(name, 0.0) for each in rollouts), key=abs, default=0.0)
        for name in names
    ]
    shape = (len(rollouts), len(names))
    return {
        "reward_components_BK": torch.tensor(parts, dtype=torch.float32).view(shape),
        "component_weights_BK": torch.tensor(weights, dtype=torch.float32).expand(shape).clone(),
    }


def concat_draws(first: PackedBatch, second: PackedBatch) -> PackedBatch:
    """Two draws of a step as one batch. A prompt that is in both is two groups."""
    assert first.keys() <= second.keys(), (
        f"the second draw has no {sorted(first.keys() - second.keys())}"
    )
    return batches.concat([first, {**second, "groups": second["groups"].beyond(first["groups"])}])


def correctness(rollout: Rollout) -> float:
    """Right or wrong before any shaping: the component of that name, or else the whole reward."""
    parts = [
        value
        for word in CORRECT
        for name, value in rollout.parts.items()
        if name.rpartition("/")[2] == word
    ]
    return float(_number(parts[0] if parts else rollout.reward))


def place_step_rewards(rollouts: Sequence[Rollout], batch: PackedBatch) -> PackedBatch:
    """Step rewards on the token axis. `StepReward.token` counts sampled tokens; the batch counts all of them."""
    loss_mask_T, segments = batch["loss_mask_T"], batch["segments"]
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


def check_step_rewards(rollouts: Sequence[Rollout]) -> None:
    """ValueError where rollouts were scored, but none of their steps."""
    if not any(each.steps for each in rollouts) and any(each.scored for each in rollouts):
        raise ValueError(
            "this algorithm learns from a reward at every step, but the rewards gave one number for each answer; use "
            "a process_reward_model, the verifier of a task that scores steps (running_sum), or a function that "
            "returns StepReward records"
        )


def _length(rollout: Rollout) -> int:
    return sum(len(turn.observed) + len(turn.completion.tokens) for turn in rollout.turns)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
